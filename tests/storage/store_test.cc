// What every store promises, and what a directory that is one survives.
#include "storage/store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "storage/bounded_files.h"
#include "storage/direct_files.h"
#include "storage/faulty_files.h"
#include "storage/faulty_store.h"
#include "storage/file_store.h"
#include "storage/memory_store.h"
#include "storage/posix_files.h"
#include "storage/recording_files.h"
#include "support/temp_dir.h"

namespace perdure {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kAll = 1 << 20;

enum class StoreKind { kPosix, kBounded, kRecording, kMemory, kFaultyWithoutFaults };

class StoreTest : public testing::TestWithParam<StoreKind> {
 protected:
  Store& store() {
    switch (GetParam()) {
      case StoreKind::kPosix:
        return posix_;
      case StoreKind::kBounded:
        return bounded_;
      case StoreKind::kRecording:
        return recording_;
      case StoreKind::kMemory:
        return memory_;
      case StoreKind::kFaultyWithoutFaults:
        return faulty_;
    }
    return memory_;
  }
  std::string Get(const std::string& key) {
    const Result<std::string> value = store().Get(key, 0, kAll);
    return value.ok() ? *value : std::string(NameOf(value.status().code()));
  }

 private:
  TempDir dir_;
  PosixFiles posix_files_;
  RecordingFiles recording_files_;
  BoundedFiles bounded_files_{std::make_shared<DirectFiles>(), std::chrono::seconds(60)};
  FileStore posix_{posix_files_, dir_ / "not/there/yet"};
  FileStore bounded_{bounded_files_, dir_ / "bounded/"};
  FileStore recording_{recording_files_, "/store"};
  MemoryStore memory_;
  FaultyStore faulty_{memory_};
};

TEST_P(StoreTest, PutReplaces) {
  EXPECT_EQ(Get("a"), "not_found");
  ASSERT_TRUE(store().Put("a", "one").ok());
  EXPECT_EQ(Get("a"), "one");
  ASSERT_TRUE(store().Put("a", "another").ok());
  EXPECT_EQ(Get("a"), "another");
  ASSERT_TRUE(store().Put("a", "").ok());
  EXPECT_EQ(Get("a"), "");
  const std::string bytes("\0\n\xff\x80", 4);
  ASSERT_TRUE(store().Put("deep/er/a", bytes).ok());
  EXPECT_EQ(Get("deep/er/a"), bytes);
}

TEST_P(StoreTest, CreateDoesNot) {
  ASSERT_TRUE(store().Create("lineage/g1.claim", "mine").ok());
  EXPECT_EQ(store().Create("lineage/g1.claim", "theirs").code(), Code::kAlreadyExists);
  EXPECT_EQ(store().Create("lineage/g1.claim", "mine and more").code(), Code::kAlreadyExists);
  EXPECT_EQ(store().Create("lineage/g1.claim", "").code(), Code::kAlreadyExists);
  EXPECT_EQ(Get("lineage/g1.claim"), "mine");
  // As when the answer to the first try was lost.
  EXPECT_TRUE(store().Create("lineage/g1.claim", "mine").ok());
  ASSERT_TRUE(store().Remove("lineage/g1.claim").ok());
  EXPECT_TRUE(store().Create("lineage/g1.claim", "theirs").ok());
  EXPECT_EQ(Get("lineage/g1.claim"), "theirs");
}

TEST_P(StoreTest, GetReadsARange) {
  ASSERT_TRUE(store().Put("a", "0123456789").ok());
  EXPECT_EQ(*store().Get("a", 0, 4), "0123");
  EXPECT_EQ(*store().Get("a", 4, 4), "4567");
  EXPECT_EQ(*store().Get("a", 8, 4), "89");
  EXPECT_EQ(*store().Get("a", 10, 4), "");
  EXPECT_EQ(*store().Get("a", 99, 4), "");
  EXPECT_EQ(*store().Get("a", 3, 0), "");
  EXPECT_EQ(store().Get("b", 0, 4).status().code(), Code::kNotFound);
  EXPECT_EQ(*GetWhole(store(), "a", 10), "0123456789");
  const Status too_long = GetWhole(store(), "a", 9).status();
  EXPECT_EQ(too_long.code(), Code::kInvalidArgument);
  EXPECT_THAT(too_long.message(), HasSubstr(store().Where("a")));
  EXPECT_TRUE(*Exists(store(), "a"));
  EXPECT_FALSE(*Exists(store(), "b"));
}

TEST_P(StoreTest, ListSeesOneLevel) {
  EXPECT_THAT(*store().List(""), IsEmpty());
  EXPECT_THAT(*store().List("lineage"), IsEmpty());
  for (const char* key : {"z", "lineage/g10.json", "lineage/g9.json", "lineage/G.json",
                          "lineage/old/g1.json", "lineage-of-mine/x", "lineage.txt"}) {
    ASSERT_TRUE(store().Put(key, key).ok());
  }
  EXPECT_THAT(*store().List(""), ElementsAre("lineage.txt", "z"));
  EXPECT_THAT(*store().List("lineage"), ElementsAre("G.json", "g10.json", "g9.json"));
  EXPECT_THAT(*store().List("lineage/old"), ElementsAre("g1.json"));
  EXPECT_THAT(*store().List("line"), IsEmpty());
}

TEST_P(StoreTest, RemoveIsDoneWhenItIsGone) {
  EXPECT_TRUE(store().Remove("pins/a").ok());
  ASSERT_TRUE(store().Put("pins/a", "x").ok());
  ASSERT_TRUE(store().Put("pins/b", "x").ok());
  EXPECT_TRUE(store().Remove("pins/a").ok());
  EXPECT_TRUE(store().Remove("pins/a").ok());
  EXPECT_EQ(Get("pins/a"), "not_found");
  EXPECT_THAT(*store().List("pins"), ElementsAre("b"));
}

TEST_P(StoreTest, WhatIsNoKeyIsRefused) {
  for (const std::string& key :
       {std::string(), std::string("/a"), std::string("a/"), std::string("a//b"), std::string("."),
        std::string("a/.."), std::string("../a"), std::string(".tmp-a"), std::string("a/.tmp-b"),
        std::string("a b"), std::string("a\nb"), std::string("a\0b", 3), std::string("\xc3\xa9"),
        std::string(513, 'a')}) {
    SCOPED_TRACE(key);
    EXPECT_EQ(store().Put(key, "x").code(), Code::kInvalidArgument);
    EXPECT_EQ(store().Create(key, "x").code(), Code::kInvalidArgument);
    EXPECT_EQ(store().Get(key, 0, 1).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(store().Remove(key).code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(store().List("..").status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(store().Put("...", "x").ok()) << "odd, but a name";
  EXPECT_TRUE(store().Put(std::string(200, 'a'), "x").ok());
}

// Of many who create at once, one succeeds.
TEST_P(StoreTest, OneCreates) {
  constexpr int kThreads = 4;
  for (int round = 0; round < 20; ++round) {
    const std::string key = fmt::format("lineage/g{}.claim", round);
    std::vector<Status> created(kThreads);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        created[static_cast<std::size_t>(i)] = store().Create(key, fmt::format("thread {}", i));
      });
    }
    for (std::thread& thread : threads) thread.join();
    int winners = 0;
    for (int i = 0; i < kThreads; ++i) {
      const Status& mine = created[static_cast<std::size_t>(i)];
      if (mine.ok()) {
        ++winners;
        EXPECT_EQ(Get(key), fmt::format("thread {}", i));
      } else {
        EXPECT_EQ(mine.code(), Code::kAlreadyExists) << mine.ToString();
      }
    }
    EXPECT_EQ(winners, 1);
  }
}

// Readers beside a writer see one value or the other, whole.
TEST_P(StoreTest, NobodySeesAHalf) {
  const std::string values[] = {std::string(40000, 'a'), std::string(50000, 'b')};
  ASSERT_TRUE(store().Put("latest", values[0]).ok());
  std::thread writer([&] {
    for (int i = 0; i < 60; ++i) {
      EXPECT_TRUE(store().Put("latest", values[i % 2]).ok());
    }
  });
  for (int i = 0; i < 60; ++i) {
    const Result<std::string> seen = store().Get("latest", 0, kAll);
    ASSERT_TRUE(seen.ok()) << seen.status().ToString();
    EXPECT_TRUE(*seen == values[0] || *seen == values[1]) << seen->size() << " bytes";
  }
  writer.join();
}

std::string NameOfKind(const testing::TestParamInfo<StoreKind>& which) {
  constexpr const char* kNames[] = {"Posix", "Bounded", "Recording", "Memory", "FaultyWithout"};
  return kNames[static_cast<std::size_t>(which.param)];
}

INSTANTIATE_TEST_SUITE_P(All, StoreTest,
                         testing::Values(StoreKind::kPosix, StoreKind::kBounded,
                                         StoreKind::kRecording, StoreKind::kMemory,
                                         StoreKind::kFaultyWithoutFaults),
                         &NameOfKind);

// ---------------------------------------------------------------- a directory

TEST(FileStoreTest, AFileInTheWayIsNamed) {
  TempDir dir;
  PosixFiles files;
  std::ofstream(dir / "file") << "mine";
  FileStore store(files, dir / "file");
  EXPECT_EQ(store.Get("a", 0, 1).status().code(), Code::kNotFound);
  const Status status = store.Put("a", "x");
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr((dir / "file") + " is a file, not a directory"));
}

TEST(FileStoreTest, WhatIsNoValueIsNotListed) {
  TempDir dir;
  PosixFiles files;
  FileStore store(files, dir / "store");
  ASSERT_TRUE(store.Put("a", "x").ok());
  std::ofstream(dir / "store/.tmp-b-0123abcd") << "half";
  std::ofstream(dir / "store/not a key") << "somebody else's";
  std::filesystem::create_directory(dir / "store/c");
  EXPECT_THAT(*store.List(""), ElementsAre("a"));
}

TEST(FileStoreTest, TemporariesOfTheDeadAreRemovedAndNothingElse) {
  TempDir dir;
  PosixFiles files;
  FileStore store(files, dir / "store");
  ASSERT_TRUE(store.Put("lineage/g1.claim", "x").ok());
  for (const char* name : {".tmp-g1.claim-01", ".tmp-g-2.json-02", ".tmp-other-03", ".tmp-", ".tmp",
                           ".tmp-nodash", "tmp-g1.claim-04"}) {
    std::ofstream(dir / "store/lineage/" + name) << "x";
  }
  std::vector<std::string> asked;
  store.RemoveTemporaries("lineage", [&](std::string_view name) {
    asked.emplace_back(name);
    return name != "other";
  });
  EXPECT_THAT(asked, testing::UnorderedElementsAre("g1.claim", "g-2.json", "other"));
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "store/lineage")) {
    left.push_back(entry.path().filename());
  }
  EXPECT_THAT(left, testing::UnorderedElementsAre("g1.claim", ".tmp-other-03", ".tmp-", ".tmp",
                                                  ".tmp-nodash", "tmp-g1.claim-04"));
}

// A failing step leaves the value that was, or the new one; and no temporary file that could have
// been removed.
TEST(FileStoreTest, EachStepFailsOnce) {
  for (const bool create : {false, true}) {
    for (std::int64_t n = 1;; ++n) {
      SCOPED_TRACE(testing::Message() << (create ? "create" : "put") << ", step " << n);
      RecordingFiles memory;
      FaultyFiles files(memory);
      FileStore store(files, "/data/store");
      if (!create) {
        ASSERT_TRUE(store.Put("a/b", "old").ok());
      }
      const std::int64_t before = files.steps();
      files.Set({{.first_step = before + n, .last_step = before + n}});
      const Status status = create ? store.Create("a/b", "new") : store.Put("a/b", "new");
      if (files.steps() < before + n) {
        EXPECT_GT(n, create ? 8 : 5);
        break;
      }
      files.Set({});
      const Result<std::string> value = store.Get("a/b", 0, kAll);
      if (status.ok()) {
        EXPECT_EQ(*value, "new");  // a removal failed: best effort
        continue;
      }
      const std::string seen = value.ok() ? *value : std::string(NameOf(value.status().code()));
      EXPECT_TRUE(seen == (create ? "not_found" : "old") || seen == "new") << seen;
      EXPECT_TRUE((create ? store.Create("a/b", "new") : store.Put("a/b", "new")).ok());
      EXPECT_EQ(*store.Get("a/b", 0, kAll), "new");
    }
  }
}

// The answer of link() is lost, as on a network: what is there decides.
TEST(FileStoreTest, ALinkThatTookEffectAndSaidNo) {
  class Forgetful final : public Files {
   public:
    explicit Forgetful(Files& base) : base_(base) {}
    Result<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
      return base_.Create(path);
    }
    Result<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
      return base_.Open(path);
    }
    Result<std::vector<DirectoryEntry>> List(const std::string& directory) override {
      return base_.List(directory);
    }
    Result<FileInfo> Info(const std::string& path) override { return base_.Info(path); }
    Status MakeDirectory(const std::string& path) override { return base_.MakeDirectory(path); }
    Status Rename(const std::string& from, const std::string& to, Replace replace) override {
      return base_.Rename(from, to, replace);
    }
    Status Link(const std::string& from, const std::string& to) override {
      static_cast<void>(base_.Link(from, to).ok());
      return Status(Code::kAlreadyExists, "link: the first answer was lost");
    }
    Status Remove(const std::string& path) override { return base_.Remove(path); }
    Status SyncDirectory(const std::string& directory) override {
      return base_.SyncDirectory(directory);
    }

   private:
    Files& base_;
  };
  RecordingFiles memory;
  Forgetful files(memory);
  FileStore store(files, "/store");
  EXPECT_TRUE(store.Create("a", "mine").ok());
  EXPECT_EQ(store.Create("a", "theirs").code(), Code::kAlreadyExists);
  EXPECT_EQ(*store.Get("a", 0, kAll), "mine");
}

// After each step of a history the power is cut: what was promised is there, and nothing half.
TEST(FileStoreTest, WhatReturnedSurvivesALossOfPower) {
  RecordingFiles files;
  // What "a" and "b/c" may hold once so many steps were made; "" stands for absent.
  struct Promise {
    std::int64_t after;
    std::string a, b;
  };
  std::vector<Promise> promises = {{0, "", ""}};
  {
    FileStore store(files, "/data/store");
    const auto promise = [&](const Status& status, const char* a, const char* b) {
      ASSERT_TRUE(status.ok()) << status.ToString();
      promises.push_back({files.steps(), a, b});
    };
    promise(store.Create("a", "a1"), "a1", "");
    promise(store.Put("a", "a2"), "a2", "");
    promise(store.Put("b/c", "b1"), "a2", "b1");
    promise(store.Remove("a"), "", "b1");
    promise(store.Create("a", "a3"), "a3", "b1");
    promise(store.Put("b/c", "b2"), "a3", "b2");
    promise(store.Remove("b/c"), "a3", "");
  }
  int disks = 0;
  for (std::int64_t n = 0; n <= files.steps(); ++n) {
    std::size_t kept = 0;
    while (kept + 1 < promises.size() && promises[kept + 1].after <= n) ++kept;
    const Promise& last = promises[kept];
    const Promise& next = promises[std::min(kept + 1, promises.size() - 1)];
    files.ForEachDisk(n, 64, 1, [&](const MemoryDisk& disk, const std::string& lost) {
      ++disks;
      RecordingFiles left(disk);
      FileStore store(left, "/data/store");
      const auto value = [&](const char* key) {
        const Result<std::string> found = store.Get(key, 0, kAll);
        return found.ok() ? *found : std::string();
      };
      EXPECT_THAT(value("a"), testing::AnyOf(last.a, next.a)) << "step " << n << ", lost " << lost;
      EXPECT_THAT(value("b/c"), testing::AnyOf(last.b, next.b)) << "step " << n << " lost " << lost;
    });
  }
  EXPECT_GT(disks, 100);
}

}  // namespace
}  // namespace perdure
