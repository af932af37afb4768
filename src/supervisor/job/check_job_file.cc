// What a job file says, held against the machine it is to run on.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "base/posix.h"
#include "supervisor/job/job_file.h"

namespace perdure {
namespace {

namespace fs = std::filesystem;

constexpr char kDefaultPath[] = "/usr/local/bin:/usr/bin:/bin";

bool IsExecutableFile(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

Status CheckCommand(const JobFile& job) {
  const std::string& program = job.command[0];
  if (program.find('/') != std::string::npos) {
    if (IsExecutableFile(program)) return Ok();
    struct stat status {};
    const bool there = ::stat(program.c_str(), &status) == 0;
    const char* what = !there                    ? "does not exist"
                       : S_ISDIR(status.st_mode) ? "is a directory"
                                                 : "is not executable (chmod +x it)";
    return Status(there ? Code::kFailedPrecondition : Code::kNotFound,
                  fmt::format("{}: command: {} {}", job.path, program, what));
  }
  const auto own = job.launch.env.find("PATH");
  const std::string search =
      own != job.launch.env.end() ? own->second : GetEnv("PATH").value_or(kDefaultPath);
  for (std::size_t begin = 0; begin <= search.size();) {
    std::size_t end = search.find(':', begin);
    if (end == std::string::npos) end = search.size();
    const std::string directory = search.substr(begin, end - begin);
    if (IsExecutableFile((directory.empty() ? "." : directory) + "/" + program)) return Ok();
    begin = end + 1;
  }
  return Status(
      Code::kNotFound,
      fmt::format("{}: command: {} is in no directory of PATH; give its path", job.path, program));
}

// Writes and removes a file: permission bits alone do not tell (root, read-only mounts, quotas).
Status CheckDirectory(const JobFile& job) {
  const std::string& directory = job.checkpoint->directory;
  const auto fail = [&](int error, const std::string& doing) {
    const Status status = ErrnoStatus(error, doing);
    return Status(status.code(), fmt::format("{}: checkpoint.directory: cannot be written: {}",
                                             job.path, status.message()));
  };
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return fail(error.value(), "create " + directory);
  const std::string probe = directory + "/.perdure-probe-" + RandomHex(8);
  const UniqueFd file(::open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return fail(errno, "create a file in " + directory);
  char block[4096] = {};
  const ssize_t written = ::write(file.get(), block, sizeof block);
  const int write_error = written < 0 ? errno : ENOSPC;
  ::unlink(probe.c_str());
  if (written != static_cast<ssize_t>(sizeof block)) {
    return fail(write_error, "write a file in " + directory);
  }
  return Ok();
}

}  // namespace

Status CheckJobFile(const JobFile& job) {
  PERDURE_RETURN_IF_ERROR(CheckCommand(job));
  if (job.checkpoint.has_value()) PERDURE_RETURN_IF_ERROR(CheckDirectory(job));
  return Ok();
}

}  // namespace perdure
