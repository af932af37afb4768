// Not among the unit tests: the sanitizers would look at every one of the bytes.
#include "storage/posix_io.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/posix.h"

namespace perdure {
namespace {

// The kernel takes 0x7ffff000 bytes per call and says so by a short result.
TEST(PosixIo, OneWriteOfFiveGiBIsSplit) {
  constexpr std::size_t kFiveGiB = std::size_t{5} << 30;
  // Never touched, so it costs no memory; nor does the device that forgets it.
  void* const memory =
      ::mmap(nullptr, kFiveGiB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(null.valid());
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(memory), kFiveGiB);
  EXPECT_LT(::pwrite(null.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()))
      << "the limit is there";
  EXPECT_TRUE(WriteAll(null.get(), 0, bytes, "/dev/null").ok());
  ::munmap(memory, kFiveGiB);
}

}  // namespace
}  // namespace perdure
