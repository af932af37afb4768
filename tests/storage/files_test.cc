#include "storage/files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <vector>

#include "storage/bounded_files.h"
#include "storage/direct_files.h"
#include "storage/faulty_files.h"
#include "storage/posix_files.h"
#include "storage/recording_files.h"
#include "support/temp_dir.h"

namespace perdure {
namespace {

enum class Kind {
  kPosix,
  kPosixWithoutNoReplace,
  kDirect,
  kFaultyWithoutFaults,
  kRecording,
  kBounded
};

// So that a few hundred kilobytes take every path.
DirectOptions SmallBlocks() {
  DirectOptions options;
  options.lane.block_bytes = 16 << 10;
  options.lane.depth = 3;
  options.direct_from_bytes = 1;
  return options;
}

// What every implementation promises.
class FilesTest : public testing::TestWithParam<Kind> {
 protected:
  FilesTest() {
    if (GetParam() == Kind::kPosixWithoutNoReplace) posix_.ForgetNoReplace();
  }
  Files& files() {
    if (GetParam() == Kind::kRecording) return recording_;
    if (GetParam() == Kind::kBounded) return bounded_;
    return GetParam() == Kind::kFaultyWithoutFaults ? faulty_ : Base();
  }
  std::string Path(const std::string& name) const {
    return GetParam() == Kind::kRecording ? JoinPath("/", name) : dir_ / name;
  }
  void Put(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteWholeFile(files(), Path(name), text).ok());
  }
  std::string Get(const std::string& name) {
    const Result<std::string> text = ReadWholeFile(files(), Path(name), 1 << 20);
    return text.ok() ? *text : text.status().ToString();
  }

 private:
  Files& Base() {
    return GetParam() == Kind::kDirect ? static_cast<Files&>(direct_) : static_cast<Files&>(posix_);
  }
  TempDir dir_;
  PosixFiles posix_;
  DirectFiles direct_{SmallBlocks()};
  FaultyFiles faulty_{posix_};
  RecordingFiles recording_;
  BoundedFiles bounded_{std::make_shared<DirectFiles>(SmallBlocks()), std::chrono::seconds(60)};
};

TEST_P(FilesTest, WhatIsWrittenIsRead) {
  {
    auto file = files().Create(Path("a"));
    ASSERT_TRUE(file.ok());
    const std::string tail = "tail";
    const std::string head = "head";
    const auto bytes = [](const std::string& s) {
      return std::as_bytes(std::span<const char>(s.data(), s.size()));
    };
    ASSERT_TRUE((*file)->Write(4, bytes(tail)).ok());
    ASSERT_TRUE((*file)->Write(0, bytes(head)).ok());
    ASSERT_TRUE((*file)->Sync().ok());
    ASSERT_TRUE((*file)->Close().ok());
  }
  EXPECT_EQ(Get("a"), "headtail");
  EXPECT_EQ(files().Info(Path("a"))->bytes, 8);
  EXPECT_TRUE(files().SyncDirectory(Path("")).ok());
  auto file = files().Open(Path("a"));
  ASSERT_TRUE(file.ok());
  std::byte beyond[4];
  EXPECT_EQ((*file)->Read(6, beyond).code(), Code::kDataLoss);
}

// Sizes and places around every unit that an implementation could care about, written in parts that
// follow each other, then parts of it written again; read as a whole, in parts, and out of order.
TEST_P(FilesTest, AnyPlaceAndSizeComesBack) {
  constexpr std::int64_t kUnit = 16 << 10;
  std::vector<std::int64_t> sizes = {0,    1,    511,       512,   513,       4095,
                                     4096, 4097, kUnit - 1, kUnit, kUnit + 1, 5 * kUnit + 4096 + 7};
  int n = 0;
  for (const std::int64_t begin : {0, 1, 4095, 4096}) {
    for (const std::int64_t size : sizes) {
      SCOPED_TRACE(testing::Message() << size << " bytes from " << begin);
      const std::string path = Path(fmt::format("f{}", n++));
      std::vector<std::byte> want(static_cast<std::size_t>(begin + size));
      for (std::size_t i = static_cast<std::size_t>(begin); i < want.size(); ++i) {
        want[i] = static_cast<std::byte>(i * 31 + i / 4096 + static_cast<std::size_t>(n));
      }
      auto file = files().Create(path);
      ASSERT_TRUE(file.ok());
      if (n % 2 == 0) {
        ASSERT_TRUE((*file)->Reserve(begin + size).ok());
      }
      const auto put = [&](std::int64_t from, std::int64_t to) {
        const std::span<const std::byte> all = want;
        return (*file)->Write(
            from, all.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(to - from)));
      };
      const std::int64_t middle = begin + size / 3;
      ASSERT_TRUE(put(begin, middle).ok());
      ASSERT_TRUE(put(middle, begin + size).ok());
      // What is written again last wins.
      for (std::size_t i = 0; i < want.size(); i += 3) want[i] ^= std::byte{0x5a};
      ASSERT_TRUE(put(0, begin + size).ok());
      ASSERT_TRUE((*file)->Sync().ok());
      ASSERT_TRUE((*file)->Close().ok());
      ASSERT_EQ(files().Info(path)->bytes, begin + size);

      auto back = files().Open(path);
      ASSERT_TRUE(back.ok());
      (*back)->Expect(begin, size);
      std::vector<std::byte> got(want.size());
      const auto get = [&](std::int64_t from, std::int64_t to) {
        return (*back)->Read(
            from, std::span<std::byte>(got).subspan(static_cast<std::size_t>(from),
                                                    static_cast<std::size_t>(to - from)));
      };
      ASSERT_TRUE(get(begin, middle).ok());
      ASSERT_TRUE(get(middle, begin + size).ok());
      ASSERT_TRUE(get(0, begin).ok());  // was not expected, and lies behind
      EXPECT_EQ(got, want);
      // With a gap, and past the end.
      got.assign(want.size(), std::byte{0});
      (*back)->Expect(0, begin + size + 4096);
      const std::int64_t late = begin + size - size / 5;
      ASSERT_TRUE(get(late, begin + size).ok());
      EXPECT_TRUE(std::equal(got.begin() + late, got.end(), want.begin() + late));
      std::byte beyond[2];
      const std::int64_t last = std::max<std::int64_t>(begin + size - 1, 0);
      EXPECT_EQ((*back)->Read(last, beyond).code(), Code::kDataLoss);
    }
  }
}

TEST_P(FilesTest, PlacesPastFourGiB) {
  if (GetParam() == Kind::kRecording) return;  // which would need them as memory
  constexpr std::int64_t kFar = (std::int64_t{5} << 30) + 123;
  std::vector<std::byte> bytes(40000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 251);
  auto file = files().Create(Path("far"));
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->Write(kFar, bytes).ok());
  ASSERT_TRUE((*file)->Close().ok());
  const std::int64_t size = kFar + static_cast<std::int64_t>(bytes.size());
  EXPECT_EQ(files().Info(Path("far"))->bytes, size);
  auto back = files().Open(Path("far"));
  ASSERT_TRUE(back.ok());
  std::vector<std::byte> got(bytes.size());
  (*back)->Expect(kFar - 1, size - kFar + 1);
  ASSERT_TRUE((*back)->Read(kFar, got).ok());
  EXPECT_EQ(got, bytes);
}

TEST_P(FilesTest, CreateLinkAndRenameNeverReplace) {
  Put("a", "one");
  Put("b", "two");
  EXPECT_EQ(files().Create(Path("a")).status().code(), Code::kAlreadyExists);
  EXPECT_EQ(files().Link(Path("a"), Path("b")).code(), Code::kAlreadyExists);
  EXPECT_EQ(files().Rename(Path("a"), Path("b"), Files::Replace::kNo).code(), Code::kAlreadyExists);
  EXPECT_EQ(Get("b"), "two");
  EXPECT_TRUE(files().Link(Path("a"), Path("c")).ok());
  EXPECT_TRUE(files().Rename(Path("a"), Path("b"), Files::Replace::kYes).ok());
  EXPECT_EQ(Get("b"), "one");
  EXPECT_EQ(Get("c"), "one");
}

TEST_P(FilesTest, DirectoriesAreNotReplacedEither) {
  ASSERT_TRUE(files().MakeDirectory(Path("from")).ok());
  ASSERT_TRUE(files().MakeDirectory(Path("to")).ok());
  Put("from/a", "from");
  Put("to/a", "to");
  EXPECT_FALSE(files().Rename(Path("from"), Path("to"), Files::Replace::kNo).ok());
  EXPECT_EQ(Get("to/a"), "to");
  EXPECT_EQ(files().MakeDirectory(Path("to")).code(), Code::kAlreadyExists);
  EXPECT_EQ(files().Remove(Path("to")).code(), Code::kAlreadyExists) << "it is not empty";
  EXPECT_TRUE(files().Rename(Path("from"), Path("new"), Files::Replace::kNo).ok());
  EXPECT_EQ(Get("new/a"), "from");
}

TEST_P(FilesTest, ListsByNameWithKinds) {
  ASSERT_TRUE(files().MakeDirectory(Path("d")).ok());
  Put("z", "");
  Put("a", "");
  const bool links = GetParam() != Kind::kRecording;  // which makes none and meets none
  if (links) {
    ASSERT_EQ(::symlink("a", Path("link").c_str()), 0);
  }
  const auto entries = files().List(Path(""));
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), links ? 4u : 3u);
  EXPECT_EQ((*entries)[0].name, "a");
  EXPECT_EQ((*entries)[0].kind, FileKind::kFile);
  EXPECT_EQ((*entries)[1].kind, FileKind::kDirectory);
  if (!links) return;
  EXPECT_EQ((*entries)[2].kind, FileKind::kOther);
  EXPECT_EQ(files().Info(Path("link"))->kind, FileKind::kOther);
}

TEST_P(FilesTest, WhatIsNotThereIsNotFoundAndNamed) {
  const Status status = files().Open(Path("nothing")).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_NE(status.message().find(Path("nothing")), std::string::npos);
  EXPECT_EQ(files().List(Path("nothing")).status().code(), Code::kNotFound);
  EXPECT_EQ(files().Info(Path("nothing")).status().code(), Code::kNotFound);
  EXPECT_EQ(files().Remove(Path("nothing")).code(), Code::kNotFound);
}

INSTANTIATE_TEST_SUITE_P(All, FilesTest,
                         testing::Values(Kind::kPosix, Kind::kPosixWithoutNoReplace, Kind::kDirect,
                                         Kind::kFaultyWithoutFaults, Kind::kRecording,
                                         Kind::kBounded));

TEST(PosixFilesTest, ACloseTwiceOrAWriteAfterItFails) {
  TempDir dir;
  PosixFiles files;
  auto file = files.Create(dir / "a");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->Close().ok());
  EXPECT_FALSE((*file)->Write(0, {}).ok());
  EXPECT_FALSE((*file)->Close().ok());
}

TEST(FaultyFilesTest, FailsTheStepThatItWasToldTo) {
  TempDir dir;
  PosixFiles posix;
  FaultyFiles files(posix);
  files.Set({{.kind = Fault::Kind::kError, .first_step = 2, .last_step = 2, .error = ENOSPC}});
  EXPECT_TRUE(files.MakeDirectory(dir / "a").ok());
  EXPECT_EQ(files.MakeDirectory(dir / "b").code(), Code::kResourceExhausted);
  EXPECT_TRUE(files.MakeDirectory(dir / "c").ok());
  EXPECT_EQ(files.steps(), 3);
  EXPECT_EQ(files.history()[1], "mkdir " + (dir / "b"));
  EXPECT_FALSE(posix.Info(dir / "b").ok());
}

TEST(FaultyFilesTest, AShortWriteLeavesHalf) {
  TempDir dir;
  PosixFiles posix;
  FaultyFiles files(posix);
  files.Set({{.kind = Fault::Kind::kShortWrite, .error = ENOSPC, .verb = "write"}});
  auto file = files.Create(dir / "a");
  ASSERT_TRUE(file.ok());
  const std::byte bytes[8] = {};
  EXPECT_EQ((*file)->Write(0, bytes).code(), Code::kResourceExhausted);
  EXPECT_EQ(posix.Info(dir / "a")->bytes, 4);
}

TEST(FaultyFilesTest, KillsTheProcessAtTheStep) {
  for (const auto kind : {Fault::Kind::kKillBefore, Fault::Kind::kKillAfter}) {
    TempDir dir;
    PosixFiles posix;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      FaultyFiles files(posix);
      files.Set({{.kind = kind, .first_step = 2}});
      static_cast<void>(files.MakeDirectory(dir / "a").ok());
      static_cast<void>(files.MakeDirectory(dir / "b").ok());
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    EXPECT_TRUE(posix.Info(dir / "a").ok());
    EXPECT_EQ(posix.Info(dir / "b").ok(), kind == Fault::Kind::kKillAfter);
  }
}

// ---------------------------------------------------------------- what a power cut leaves

// The images of all disks that a cut after the last step could leave.
std::set<std::string> Disks(const RecordingFiles& files, std::size_t disks_max = 1000) {
  std::set<std::string> images;
  files.ForEachDisk(files.steps(), disks_max, 1, [&](const MemoryDisk& disk, const std::string&) {
    images.insert(disk.Image());
  });
  return images;
}

TEST(RecordingFilesTest, BytesAndNamesAreLostSeparately) {
  RecordingFiles files;
  {
    auto file = files.Create("/a");
    ASSERT_TRUE(file.ok());
    const std::string text = "abcd";
    ASSERT_TRUE((*file)->Write(0, std::as_bytes(std::span<const char>(text))).ok());
    EXPECT_EQ(Disks(files), (std::set<std::string>{"", "/a 0\n", "/a 2\nab", "/a 4\nabcd",
                                                   std::string("/a 4\n\0\0\0\0", 9)}));
    ASSERT_TRUE((*file)->Sync().ok());
  }
  EXPECT_EQ(Disks(files), (std::set<std::string>{"", "/a 4\nabcd"}));
  ASSERT_TRUE(files.SyncDirectory("/").ok());
  EXPECT_EQ(Disks(files), (std::set<std::string>{"/a 4\nabcd"}));
}

TEST(RecordingFilesTest, NamesChangeInAnySubsetAndARenameIsOneChange) {
  RecordingFiles files;
  ASSERT_TRUE(files.MakeDirectory("/d").ok());
  ASSERT_TRUE(files.MakeDirectory("/d/x").ok());
  ASSERT_TRUE(files.SyncDirectory("/d").ok());
  EXPECT_EQ(Disks(files), (std::set<std::string>{"", "/d 0\n/d/x 0\n"}));
  ASSERT_TRUE(files.SyncDirectory("/").ok());
  ASSERT_TRUE(files.Rename("/d/x", "/d/y", Files::Replace::kNo).ok());
  ASSERT_TRUE(files.MakeDirectory("/d/z").ok());
  EXPECT_EQ(Disks(files),
            (std::set<std::string>{"/d 0\n/d/x 0\n", "/d 0\n/d/y 0\n", "/d 0\n/d/x 0\n/d/z 0\n",
                                   "/d 0\n/d/y 0\n/d/z 0\n"}));
}

TEST(RecordingFilesTest, ABoundedChoiceHasTheExtremesAndIsRepeatable) {
  RecordingFiles files;
  for (int i = 0; i < 20; ++i)
    ASSERT_TRUE(files.MakeDirectory(JoinPath("/", std::to_string(i))).ok());
  const std::set<std::string> disks = Disks(files, 100);
  EXPECT_GT(disks.size(), 80u);
  EXPECT_LE(disks.size(), 100u);
  EXPECT_EQ(disks.count(""), 1u);
  EXPECT_EQ(disks.count(files.Current().Image()), 1u);
  EXPECT_EQ(disks, Disks(files, 100));
}

TEST(FaultyFilesTest, ASwallowedSyncReportsSuccessAndDoesNothing) {
  RecordingFiles base;
  FaultyFiles files(base);
  files.Set({{.kind = Fault::Kind::kSwallow}});
  ASSERT_TRUE(WriteWholeFile(files, "/a", "text").ok());
  ASSERT_TRUE(files.SyncDirectory("/").ok());
  EXPECT_EQ(base.history(), (std::vector<std::string>{"create /a", "write /a", "close /a"}));
  EXPECT_EQ(*ReadWholeFile(base, "/a", 10), "text");
}

}  // namespace
}  // namespace perdure
