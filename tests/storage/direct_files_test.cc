// The direct way where it exists, the plain way where it is refused, and a disk that answers badly.
#include "storage/direct_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <vector>

#include "support/temp_dir.h"

namespace perdure {
namespace {

constexpr std::size_t kBlock = 16 << 10;

DirectOptions OptionsWith(RingOpener open_ring) {
  DirectOptions options;
  options.lane.block_bytes = kBlock;
  options.lane.depth = 3;
  options.direct_from_bytes = 1;
  options.open_ring = std::move(open_ring);
  return options;
}

std::vector<std::byte> Pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 131 + i / 512);
  return bytes;
}

Status WriteAndSync(Files& files, const std::string& path, std::span<const std::byte> bytes) {
  PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files.Create(path));
  PERDURE_RETURN_IF_ERROR(file->Write(0, bytes));
  PERDURE_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

Result<std::vector<std::byte>> ReadExpected(Files& files, const std::string& path) {
  PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, files.Open(path));
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t size, file->Size());
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  file->Expect(0, size);
  PERDURE_RETURN_IF_ERROR(file->Read(0, bytes));
  return bytes;
}

// A ring that carries out each request at once, as told: `answer` gets the request and how many
// came before, and returns what the kernel would. Completions come back newest first, as a disk
// may.
class ScriptedRing final : public Ring {
 public:
  using Answer = std::function<std::int64_t(const Request&, int)>;

  ScriptedRing(Answer answer, int& count) : answer_(std::move(answer)), count_(count) {}

  Status Submit(const Request& request) override {
    completions_.push_back({request.tag, answer_(request, count_++)});
    return Ok();
  }
  Result<Completion> Wait(Deadline) override {
    // A request that the script swallows is never heard of again.
    for (std::size_t i = completions_.size(); i-- > 0;) {
      const Completion completion = completions_[i];
      if (completion.result == kSwallowed) continue;
      completions_.erase(completions_.begin() + static_cast<std::ptrdiff_t>(i));
      return completion;
    }
    return Status(Code::kDeadlineExceeded, "no answer");
  }

  static constexpr std::int64_t kSwallowed = INT64_MIN;

 private:
  const Answer answer_;
  int& count_;
  std::vector<Completion> completions_;
};

std::int64_t Perform(const Ring::Request& request) {
  ssize_t done = 0;
  switch (request.verb) {
    case Ring::Verb::kRead:
      done = ::pread(request.fd, request.bytes.data(), request.bytes.size(), request.offset);
      break;
    case Ring::Verb::kWrite:
      done = ::pwrite(request.fd, request.bytes.data(), request.bytes.size(), request.offset);
      break;
    case Ring::Verb::kSync:
      done = ::fsync(request.fd);
      break;
  }
  return done < 0 ? -errno : done;
}

class ScriptedDisk : public testing::Test {
 protected:
  // Skipped nowhere: where the temporary directory has no O_DIRECT at all, the ring is not asked
  // and the plain way must give the same bytes. Scripts that expect an error check `asked`.
  DirectFiles Scripted(ScriptedRing::Answer answer) {
    return DirectFiles(OptionsWith([this, answer](unsigned) -> Result<std::unique_ptr<Ring>> {
      return std::unique_ptr<Ring>(std::make_unique<ScriptedRing>(answer, asked_));
    }));
  }
  void ExpectContent(const std::string& path, const std::vector<std::byte>& want) {
    PosixFiles plain;
    const auto got = ReadExpected(plain, path);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    EXPECT_EQ(*got, want);
  }

  TempDir dir_;
  int asked_ = 0;
  const std::vector<std::byte> bytes_ = Pattern(7 * kBlock + 5000);
};

TEST_F(ScriptedDisk, CompletionsInAnyOrder) {
  DirectFiles files = Scripted([](const Ring::Request& request, int) { return Perform(request); });
  ASSERT_TRUE(WriteAndSync(files, dir_ / "a", bytes_).ok());
  ExpectContent(dir_ / "a", bytes_);
  const auto back = ReadExpected(files, dir_ / "a");
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, bytes_);
}

TEST_F(ScriptedDisk, ShortAnswersAreGoneOnWith) {
  DirectFiles files = Scripted([](const Ring::Request& request, int n) -> std::int64_t {
    if (request.verb == Ring::Verb::kSync) return Perform(request);
    Ring::Request less = request;
    // Nothing at all, an odd number, a whole number of units.
    const std::size_t wanted[] = {0, 100, 4096, request.bytes.size()};
    less.bytes = request.bytes.first(std::min(wanted[n % 4], request.bytes.size()));
    if (less.bytes.size() % 4096 == 0) return Perform(less);
    // O_DIRECT itself moves whole units only; an odd result is told all the same.
    less.bytes = request.bytes.first(4096);
    const std::int64_t done = Perform(less);
    return done < 0 ? done : 100;
  });
  ASSERT_TRUE(WriteAndSync(files, dir_ / "a", bytes_).ok());
  ExpectContent(dir_ / "a", bytes_);
  const auto back = ReadExpected(files, dir_ / "a");
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(*back, bytes_);
}

TEST_F(ScriptedDisk, InterruptedRequestsAreSentAgain) {
  DirectFiles files = Scripted([](const Ring::Request& request, int n) -> std::int64_t {
    if (request.verb != Ring::Verb::kSync && n % 3 != 0) return n % 3 == 1 ? -EINTR : -EAGAIN;
    return Perform(request);
  });
  ASSERT_TRUE(WriteAndSync(files, dir_ / "a", bytes_).ok());
  ExpectContent(dir_ / "a", bytes_);
}

TEST_F(ScriptedDisk, WhatIsRefusedInTheMiddleTakesThePlainWay) {
  for (const int error : {EINVAL, EOPNOTSUPP}) {
    for (const int from : {0, 4}) {
      asked_ = 0;
      const std::string path = dir_ / fmt::format("f{}.{}", error, from);
      DirectFiles files = Scripted([&](const Ring::Request& request, int n) -> std::int64_t {
        return n >= from && request.verb != Ring::Verb::kSync ? -error : Perform(request);
      });
      ASSERT_TRUE(WriteAndSync(files, path, bytes_).ok());
      ExpectContent(path, bytes_);
      if (asked_ == 0) continue;
      EXPECT_NE(files.PlainBecause(path), "");
      const int asked_for_the_first = asked_;
      ASSERT_TRUE(WriteAndSync(files, path + "b", bytes_).ok());
      ExpectContent(path + "b", bytes_);
      EXPECT_EQ(asked_, asked_for_the_first) << "once refused, it is not asked again";
    }
  }
}

TEST_F(ScriptedDisk, ErrorsOfTheDiskFailTheFileAndNameIt) {
  const std::pair<int, Code> errors[] = {{EIO, Code::kUnavailable},
                                         {ESTALE, Code::kUnavailable},
                                         {ENOSPC, Code::kResourceExhausted},
                                         {EDQUOT, Code::kResourceExhausted}};
  for (const auto& [error, code] : errors) {
    for (int bad = 0; bad < 8; ++bad) {
      asked_ = 0;
      const std::string path = dir_ / fmt::format("f{}.{}", error, bad);
      const int err = error;
      DirectFiles files = Scripted([err, bad](const Ring::Request& request, int n) -> std::int64_t {
        return n == bad ? -err : Perform(request);
      });
      auto file = files.Create(path);
      ASSERT_TRUE(file.ok());
      Status status = (*file)->Write(0, bytes_);
      if (status.ok()) status = (*file)->Sync();
      if (asked_ == 0) continue;
      EXPECT_EQ(status.code(), code) << status.ToString();
      EXPECT_NE(status.message().find(path), std::string::npos) << status.ToString();
      // Nothing is expected of this file any more: no second sync can look like a success.
      EXPECT_EQ((*file)->Sync().code(), code);
      EXPECT_EQ((*file)->Close().code(), code);
    }
  }
}

TEST_F(ScriptedDisk, AReadThatFailsIsNotTakenForDamage) {
  ASSERT_TRUE([&] {
    PosixFiles plain;
    return WriteAndSync(plain, dir_ / "a", bytes_);
  }()
                  .ok());
  DirectFiles files = Scripted([](const Ring::Request& request, int n) -> std::int64_t {
    return n == 2 ? -EIO : Perform(request);
  });
  const auto back = ReadExpected(files, dir_ / "a");
  if (asked_ == 0) return;
  EXPECT_EQ(back.status().code(), Code::kUnavailable);
  EXPECT_NE(back.status().message().find(dir_ / "a"), std::string::npos);
}

TEST_F(ScriptedDisk, ADiskThatDoesNotAnswerIsAnErrorNotAHang) {
  DirectFiles files = Scripted([](const Ring::Request& request, int n) -> std::int64_t {
    return n == 3 ? ScriptedRing::kSwallowed : Perform(request);
  });
  const Status status = WriteAndSync(files, dir_ / "a", bytes_);
  if (asked_ == 0) return;
  EXPECT_EQ(status.code(), Code::kUnavailable) << status.ToString();
  EXPECT_NE(status.message().find("nothing came back"), std::string::npos) << status.ToString();
}

TEST(DirectFilesTest, WithoutARingTheBytesAreTheSame) {
  TempDir dir;
  DirectFiles files(OptionsWith([](unsigned) -> Result<std::unique_ptr<Ring>> {
    return Status(Code::kUnimplemented, "no ring here");
  }));
  const std::vector<std::byte> bytes = Pattern(5 * kBlock + 1);
  ASSERT_TRUE(WriteAndSync(files, dir / "a", bytes).ok());
  const auto back = ReadExpected(files, dir / "a");
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, bytes);
  EXPECT_NE(files.PlainBecause(dir.path()), "");
}

TEST(DirectFilesTest, AFileSystemInMemoryTakesThePlainWay) {
  if (!std::filesystem::is_directory("/dev/shm")) return;
  std::string pattern = "/dev/shm/perdure-test-XXXXXX";
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  DirectFiles files(OptionsWith(OpenUring));
  const std::vector<std::byte> bytes = Pattern(5 * kBlock + 1);
  EXPECT_TRUE(WriteAndSync(files, pattern + "/a", bytes).ok());
  EXPECT_EQ(*ReadExpected(files, pattern + "/a"), bytes);
  EXPECT_NE(files.PlainBecause(pattern).find("memory"), std::string::npos);
  std::filesystem::remove_all(pattern);
}

// Most containers forbid io_uring by such a filter.
bool ForbidUring() {
  const sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof(filter) / sizeof(filter[0]), const_cast<sock_filter*>(filter)};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(DirectFilesTest, WhereIoUringIsForbiddenThePlainWayIsTaken) {
  TempDir dir;
  const std::vector<std::byte> bytes = Pattern(5 * kBlock + 1);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!ForbidUring()) ::_exit(3);
    DirectFiles files(OptionsWith(OpenUring));
    const bool same = WriteAndSync(files, dir / "a", bytes).ok() &&
                      ReadExpected(files, dir / "a").ok() &&
                      *ReadExpected(files, dir / "a") == bytes;
    if (!same) ::_exit(1);
    ::_exit(files.PlainBecause(dir.path()).empty() ? 2 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: other bytes; 2: nothing was refused; 3: no filter";
}

TEST(DirectFilesTest, AFileThatIsLeftInTheMiddleIsTakenDown) {
  TempDir dir;
  DirectFiles files(OptionsWith(OpenUring));
  const std::vector<std::byte> bytes = Pattern(20 * kBlock);
  for (int i = 0; i < 50; ++i) {
    auto file = files.Create(dir / fmt::format("f{}", i));
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->Write(0, bytes).ok());
  }
  const auto descriptors = std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                         std::filesystem::directory_iterator());
  EXPECT_LT(descriptors, 40);
}

TEST(DirectFilesTest, AFullDiskIsToldWhenRoomIsReserved) {
  TempDir dir;
  DirectFiles files;
  auto file = files.Create(dir / "a");
  ASSERT_TRUE(file.ok());
  // More than any file system can have.
  EXPECT_FALSE((*file)->Reserve(std::int64_t{1} << 62).ok());
  EXPECT_FALSE((*file)->Sync().ok());
}

}  // namespace
}  // namespace perdure
