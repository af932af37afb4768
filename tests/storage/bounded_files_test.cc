#include "storage/bounded_files.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <thread>

#include "storage/faulty_files.h"
#include "storage/recording_files.h"

namespace perdure {
namespace {

// Files over memory in which chosen steps hang.
struct Below final {
  RecordingFiles memory;
  FaultyFiles faulty{memory};
};

class BoundedFilesTest : public testing::Test {
 protected:
  ~BoundedFilesTest() override { below_->faulty.LetGo(); }

  // Shares the ownership of both with the threads that may be left behind.
  std::shared_ptr<Files> Base() { return {below_, &below_->faulty}; }

  std::shared_ptr<Below> below_ = std::make_shared<Below>();
  BoundedFiles files_{Base(), std::chrono::milliseconds(100)};
};

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

TEST_F(BoundedFilesTest, EveryStepThatHangsIsGivenUpAndNamed) {
  ASSERT_TRUE(WriteWholeFile(files_, "/a", "text").ok());
  ASSERT_TRUE(files_.MakeDirectory("/d").ok());
  for (const char* verb :
       {"create", "write", "sync", "close", "mkdir", "rename", "link", "remove", "syncdir"}) {
    SCOPED_TRACE(verb);
    below_ = std::make_shared<Below>();
    ASSERT_TRUE(WriteWholeFile(below_->memory, "/a", "text").ok());
    BoundedFiles files(Base(), std::chrono::milliseconds(100));
    below_->faulty.Set({{.kind = Fault::Kind::kHang, .last_step = 1, .verb = verb}});
    const auto all = [&]() -> Status {
      PERDURE_RETURN_IF_ERROR(WriteWholeFile(files, "/b", "text"));
      PERDURE_RETURN_IF_ERROR(files.MakeDirectory("/e"));
      PERDURE_RETURN_IF_ERROR(files.Rename("/b", "/c", Files::Replace::kNo));
      PERDURE_RETURN_IF_ERROR(files.Link("/a", "/b"));
      PERDURE_RETURN_IF_ERROR(files.Remove("/a"));
      return files.SyncDirectory("/");
    };
    const Status status = all();
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.ToString();
    EXPECT_NE(status.message().find("/"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("has not answered for 0.1 s"), std::string::npos)
        << status.message();
    EXPECT_EQ(files.stuck(), 1);
    // The rest of the file system still answers.
    EXPECT_TRUE(files.List("/").ok());
    below_->faulty.LetGo();
  }
}

TEST_F(BoundedFilesTest, AFileIsNotUsedAgainAfterItsCallWasGivenUp) {
  below_->faulty.Set({{.kind = Fault::Kind::kHang, .verb = "write"}});
  auto file = files_.Create("/a");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->Write(0, Bytes("one")).ok()) << "told by the next call";
  const Status first = (*file)->Sync();
  EXPECT_EQ(first.code(), Code::kDeadlineExceeded);
  EXPECT_EQ((*file)->Sync().message(), first.message());
  EXPECT_EQ((*file)->Close().message(), first.message());
  EXPECT_EQ((*file)->Write(3, Bytes("two")).message(), first.message());
  EXPECT_EQ(below_->faulty.history(), (std::vector<std::string>{"create /a", "write /a"}));
}

TEST_F(BoundedFilesTest, AfterSoManyStuckCallsEveryOneIsRefusedUntilOneReturns) {
  below_->faulty.Set({{.kind = Fault::Kind::kHang, .verb = "mkdir"}});
  for (int i = 0; i < BoundedFiles::kStuckMax; ++i) {
    EXPECT_EQ(files_.MakeDirectory("/d").code(), Code::kDeadlineExceeded);
  }
  const Status refused = files_.List("/").status();
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_NE(refused.message().find("8 earlier calls"), std::string::npos) << refused.message();
  below_->faulty.Set({});
  below_->faulty.LetGo();
  const Deadline deadline = Deadline::After(std::chrono::seconds(30));
  while (files_.stuck() > 0 && !deadline.Passed(RealClock().Now())) std::this_thread::yield();
  EXPECT_TRUE(files_.MakeDirectory("/d").ok());
}

TEST_F(BoundedFilesTest, AnErrorBehindTheCallerIsToldByTheNextCall) {
  below_->faulty.Set({{.error = ENOSPC, .verb = "write"}});
  auto file = files_.Create("/a");
  ASSERT_TRUE(file.ok());
  static_cast<void>((*file)->Write(0, Bytes("one")).ok());
  EXPECT_EQ((*file)->Sync().code(), Code::kResourceExhausted);
  EXPECT_EQ((*file)->Close().code(), Code::kResourceExhausted);
}

TEST_F(BoundedFilesTest, LargeWritesGoInSlicesAndComeBackWhole) {
  std::string text(std::size_t{9} << 20, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761U >> 24);
  BoundedFiles patient(Base(), std::chrono::seconds(60));
  ASSERT_TRUE(WriteWholeFile(patient, "/a", text).ok());
  EXPECT_TRUE(*ReadWholeFile(patient, "/a", 1 << 30) == text);
}

}  // namespace
}  // namespace perdure
