// STATE/supervisor.json: where the supervisor of a job listens, and the token to show. Readable by
// its owner alone. Replaced as a whole, so a reader sees the old one or the new one.
#pragma once

#include <cstdint>
#include <string>

#include "perdure/status.h"

namespace perdure::launch {

struct SupervisorAddress {
  std::string job;
  std::string address;  // HOST:PORT
  std::string token;
  std::int64_t pid = 0;
};

std::string AddressFilePath(const std::string& state_directory);
Status WriteAddressFile(const std::string& state_directory, const SupervisorAddress& address);
// kNotFound: no supervisor has listened for this state directory yet.
Result<SupervisorAddress> ReadAddressFile(const std::string& state_directory);

}  // namespace perdure::launch
