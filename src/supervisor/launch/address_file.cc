#include "supervisor/launch/address_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/posix.h"

namespace perdure::launch {

std::string AddressFilePath(const std::string& state_directory) {
  return state_directory + "/supervisor.json";
}

Status WriteAddressFile(const std::string& state_directory, const SupervisorAddress& address) {
  const nlohmann::json json = {{"job", address.job},
                               {"address", address.address},
                               {"token", address.token},
                               {"pid", address.pid}};
  const std::string text = json.dump(2) + "\n";
  const std::string path = AddressFilePath(state_directory);
  const std::string temporary = fmt::format("{}.{}", path, RandomHex(4));
  {
    const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd.valid()) return ErrnoStatus(errno, fmt::format("open {}", temporary));
    const ssize_t written = ::write(fd.get(), text.data(), text.size());
    if (written != static_cast<ssize_t>(text.size())) {
      const int error = written < 0 ? errno : ENOSPC;
      ::unlink(temporary.c_str());
      return ErrnoStatus(error, fmt::format("write {}", temporary));
    }
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return ErrnoStatus(error, fmt::format("rename {}", path));
  }
  return Ok();
}

Result<SupervisorAddress> ReadAddressFile(const std::string& state_directory) {
  const std::string path = AddressFilePath(state_directory);
  PERDURE_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("address") || !json["address"].is_string()) {
    return Status(Code::kDataLoss, fmt::format("{} is not what a supervisor writes", path));
  }
  SupervisorAddress address;
  address.address = json["address"].get<std::string>();
  const auto text_of = [&](const char* key) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
  };
  address.job = text_of("job");
  address.token = text_of("token");
  if (json.contains("pid") && json["pid"].is_number_integer()) {
    address.pid = json["pid"].get<std::int64_t>();
  }
  return address;
}

}  // namespace perdure::launch
