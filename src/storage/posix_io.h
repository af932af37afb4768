// Whole reads and writes with plain system calls: split below the kernel's limit, continued after
// signals and short results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "perdure/status.h"

namespace perdure {

// All of `bytes` at `offset` of a descriptor; `path` is for the message.
Status WriteAll(int fd, std::int64_t offset, std::span<const std::byte> bytes,
                const std::string& path);
// Fills `bytes`; kDataLoss when the file ends before that.
Status ReadAll(int fd, std::int64_t offset, std::span<std::byte> bytes, const std::string& path);
// Makes the file `bytes` long and has the file system set the room aside. OK where a file system
// cannot do that.
Status ReserveAll(int fd, std::int64_t bytes, const std::string& path);
Result<std::int64_t> SizeOf(int fd, const std::string& path);

}  // namespace perdure
