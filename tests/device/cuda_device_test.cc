// The CUDA device over a driver of the test's own: its device memory is host memory, its streams
// carry out their work one by one as somebody looks at an event, so what is ordered wrongly copies
// the wrong bytes.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "checkpoint/snapshot.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/driver_api.h"

namespace perdure {
namespace {

// Streams and events are numbers cast to the driver's pointers.
class FakeDriver {
 public:
  struct Event {
    bool done = true;  // one that was never recorded is
    std::uint64_t recorded = 0;
  };

  // Work on a stream; `ready` says whether it may run yet.
  struct Work {
    std::function<bool()> ready;
    std::function<void()> run;
  };

  void Queue(CUstream stream, std::function<void()> run, std::function<bool()> ready = {}) {
    MutexLock lock(mutex_);
    streams_[stream].push_back({std::move(ready), std::move(run)});
  }

  // One piece of work of each stream, where it may run.
  void Advance() {
    MutexLock lock(mutex_);
    for (auto& [stream, queue] : streams_) {
      if (queue.empty() || (queue.front().ready && !queue.front().ready())) continue;
      queue.front().run();
      queue.pop_front();
    }
  }

  void Record(CUevent event, CUstream stream) {
    std::uint64_t number = 0;
    {
      MutexLock lock(mutex_);
      number = ++events_[event].recorded;
      events_[event].done = false;
    }
    Queue(stream, [this, event, number]() PERDURE_NO_THREAD_SAFETY_ANALYSIS {
      if (events_[event].recorded == number) events_[event].done = true;
      passed_[{event, number}] = true;
    });
  }

  void WaitFor(CUstream stream, CUevent event) {
    std::uint64_t number = 0;
    {
      MutexLock lock(mutex_);
      number = events_[event].recorded;
    }
    Queue(
        stream, [] {},
        [this, event, number]() PERDURE_NO_THREAD_SAFETY_ANALYSIS {
          return number == 0 || passed_[{event, number}];
        });
  }

  bool Done(CUevent event) {
    MutexLock lock(mutex_);
    return events_[event].done;
  }

  bool Idle(CUstream stream) {
    MutexLock lock(mutex_);
    return streams_[stream].empty();
  }

  std::atomic<std::uintptr_t> next{1000};
  std::atomic<int> contexts{0};  // retained
  std::atomic<int> host{0};      // blocks of pinned memory
  std::atomic<int> handles{0};   // streams and events
  CUresult fail_copies = CUDA_SUCCESS;

 private:
  Mutex mutex_;
  std::map<CUstream, std::deque<Work>> streams_ PERDURE_GUARDED_BY(mutex_);
  std::map<CUevent, Event> events_ PERDURE_GUARDED_BY(mutex_);
  std::map<std::pair<CUevent, std::uint64_t>, bool> passed_ PERDURE_GUARDED_BY(mutex_);
};

thread_local int pushed = 0;   // contexts, on this thread
FakeDriver* driver = nullptr;  // what the C functions of the running test work on

DriverApi FakeApi() {
  DriverApi api;
  api.init = [](unsigned) { return CUDA_SUCCESS; };
  api.get_error_name = [](CUresult, const char** name) {
    *name = "CUDA_ERROR_OF_THE_TEST";
    return CUDA_SUCCESS;
  };
  api.get_error_string = [](CUresult, const char** text) {
    *text = "the test says no";
    return CUDA_SUCCESS;
  };
  api.device_get_count = [](int* count) {
    *count = 1;
    return CUDA_SUCCESS;
  };
  api.device_get = [](CUdevice* device, int index) {
    *device = index;
    return CUDA_SUCCESS;
  };
  api.primary_ctx_retain = [](CUcontext* context, CUdevice) {
    ++driver->contexts;
    *context = reinterpret_cast<CUcontext>(driver->next++);
    return CUDA_SUCCESS;
  };
  api.primary_ctx_release = [](CUdevice) {
    --driver->contexts;
    return CUDA_SUCCESS;
  };
  api.ctx_push = [](CUcontext) {
    ++pushed;
    return CUDA_SUCCESS;
  };
  api.ctx_pop = [](CUcontext*) {
    --pushed;
    return CUDA_SUCCESS;
  };
  api.stream_create = [](CUstream* stream, unsigned flags) {
    EXPECT_EQ(flags, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(pushed, 1);
    ++driver->handles;
    *stream = reinterpret_cast<CUstream>(driver->next++);
    return CUDA_SUCCESS;
  };
  api.stream_destroy = [](CUstream) {
    --driver->handles;
    return CUDA_SUCCESS;
  };
  api.stream_wait_event = [](CUstream stream, CUevent event, unsigned) {
    driver->WaitFor(stream, event);
    return CUDA_SUCCESS;
  };
  api.stream_synchronize = [](CUstream stream) {
    while (!driver->Idle(stream)) driver->Advance();
    return CUDA_SUCCESS;
  };
  api.event_create = [](CUevent* event, unsigned) {
    ++driver->handles;
    *event = reinterpret_cast<CUevent>(driver->next++);
    return CUDA_SUCCESS;
  };
  api.event_destroy = [](CUevent) {
    --driver->handles;
    return CUDA_SUCCESS;
  };
  api.event_record = [](CUevent event, CUstream stream) {
    driver->Record(event, stream);
    return CUDA_SUCCESS;
  };
  api.event_query = [](CUevent event) {
    if (driver->Done(event)) return CUDA_SUCCESS;
    driver->Advance();
    return CUDA_ERROR_NOT_READY;
  };
  api.mem_host_alloc = [](void** memory, std::size_t bytes, unsigned) {
    ++driver->host;
    *memory = std::malloc(bytes);
    return CUDA_SUCCESS;
  };
  api.mem_free_host = [](void* memory) {
    --driver->host;
    std::free(memory);
    return CUDA_SUCCESS;
  };
  api.copy_to_host = [](void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    EXPECT_EQ(pushed, 1);
    driver->Queue(stream, [=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); });
    return driver->fail_copies;
  };
  api.copy_to_device = [](CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
    driver->Queue(stream, [=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
    return driver->fail_copies;
  };
  return api;
}

class CudaDeviceTest : public testing::Test {
 protected:
  CudaDeviceTest() { driver = &driver_; }
  ~CudaDeviceTest() override {
    EXPECT_EQ(driver_.contexts, 0);
    EXPECT_EQ(pushed, 0);
    EXPECT_EQ(driver_.host, 0);
    EXPECT_EQ(driver_.handles, 0);
    driver = nullptr;
  }

  static Devices::Opener Opener() {
    return [](int index) { return OpenCudaDevice(FakeApi(), index, nullptr); };
  }

  FakeDriver driver_;
};

Deadline In10() {
  return Deadline::After(std::chrono::seconds(10));
}

TEST_F(CudaDeviceTest, CopiesComeAfterTheProgramsWorkAndBeforeWhatFollows) {
  auto device = OpenCudaDevice(FakeApi(), 0, nullptr);
  ASSERT_TRUE(device.ok());
  auto stream = (*device)->OpenStream();
  ASSERT_TRUE(stream.ok());
  std::vector<int> memory(256, 1);
  std::vector<int> host(256, 0);
  const std::size_t bytes = memory.size() * sizeof(int);
  // The program's kernels: one before the copy, one after it.
  driver_.Queue(CU_STREAM_LEGACY, [&] { std::fill(memory.begin(), memory.end(), 2); });
  ASSERT_TRUE((*stream)->FollowProgram().ok());
  ASSERT_TRUE((*stream)
                  ->ToHost(reinterpret_cast<std::byte*>(host.data()),
                           reinterpret_cast<const std::byte*>(memory.data()),
                           static_cast<std::int64_t>(bytes))
                  .ok());
  const auto point = (*stream)->Mark();
  ASSERT_TRUE(point.ok());
  ASSERT_TRUE((*stream)->HoldProgram(*point).ok());
  driver_.Queue(CU_STREAM_LEGACY, [&] { std::fill(memory.begin(), memory.end(), 3); });
  EXPECT_EQ(host[0], 0) << "nothing has run yet, and nobody waited";
  ASSERT_TRUE((*stream)->Wait(*point, In10()).ok());
  ASSERT_TRUE((*stream)->Wait(*point, In10()).ok()) << "again";
  EXPECT_EQ(host, std::vector<int>(256, 2));
  for (int i = 0; i < 10; ++i) driver_.Advance();
  EXPECT_EQ(memory, std::vector<int>(256, 3)) << "the program goes on";
}

TEST_F(CudaDeviceTest, AnErrorOfTheDriverIsToldInItsWords) {
  auto device = OpenCudaDevice(FakeApi(), 0, nullptr);
  ASSERT_TRUE(device.ok());
  auto stream = (*device)->OpenStream();
  ASSERT_TRUE(stream.ok());
  driver_.fail_copies = CUDA_ERROR_ILLEGAL_ADDRESS;
  std::byte byte{};
  const Status failed = (*stream)->ToDevice(&byte, &byte, 0);
  EXPECT_EQ(failed.code(), Code::kInternal);
  EXPECT_EQ(failed.message(), "copying to the device: the test says no (CUDA_ERROR_OF_THE_TEST)");
  EXPECT_EQ(OpenCudaDevice(FakeApi(), 1, nullptr).status().message(),
            "there is no CUDA device 1: this process sees 1");
}

TEST_F(CudaDeviceTest, AWaitEndsAtItsDeadline) {
  auto device = OpenCudaDevice(FakeApi(), 0, nullptr);
  auto stream = (*device)->OpenStream();
  bool done = false;
  const CUstream other = reinterpret_cast<CUstream>(7);
  const CUevent never = reinterpret_cast<CUevent>(8);
  driver_.Queue(
      other, [] {}, [&] { return done; });
  driver_.Record(never, other);
  driver_.Queue(
      CU_STREAM_LEGACY, [] {}, [&] { return done; });
  ASSERT_TRUE((*stream)->FollowProgram().ok());
  const auto point = (*stream)->Mark();
  ASSERT_TRUE(point.ok());
  EXPECT_EQ((*stream)->Wait(*point, Deadline::After(std::chrono::milliseconds(5))).code(),
            Code::kDeadlineExceeded);
  done = true;
  EXPECT_TRUE((*stream)->Wait(*point, In10()).ok());
}

// A snapshot of device memory: the fence returns with the copies only queued, and the update, which
// is queued right after it, does not reach them.
TEST_F(CudaDeviceTest, TheFenceHoldsTheDeviceAndNotTheHost) {
  const Devices devices(Opener());
  CaptureStreams streams(devices);
  Staging staging;
  std::vector<float> weight(1000, 1.0F);
  LocalState state;
  Piece piece;
  piece.name = "w";
  piece.shape = piece.global_shape = {1000};
  piece.offset = {0};
  state.structure.push_back(piece);
  LocalEntry entry;
  entry.name = "w";
  entry.view = {weight.data(), DType::kF32, {1000}, {}, DeviceKind::kCuda, 0};
  entry.changes = Changes::kInUpdate;
  entry.owned = true;
  state.entries.push_back(entry);

  // The update of the step that is saved is still queued when its End captures.
  driver_.Queue(CU_STREAM_LEGACY, [&] { std::fill(weight.begin(), weight.end(), 5.0F); });
  auto snapshot =
      Snapshot::Take(std::move(state), {true, false, INT64_MAX, In10()}, staging, devices, streams);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().ToString();
  EXPECT_FALSE((*snapshot)->captured());
  std::thread copier([&] { (*snapshot)->CopyDeferred(); });
  ASSERT_TRUE((*snapshot)->WaitCaptured(In10()));
  ASSERT_TRUE((*snapshot)->Seal().ok());
  driver_.Queue(CU_STREAM_LEGACY, [&] { std::fill(weight.begin(), weight.end(), 6.0F); });
  ASSERT_TRUE((*snapshot)->WaitStaged(In10()).ok());
  ASSERT_TRUE((*snapshot)->WaitSealed(In10()).ok());
  copier.join();
  std::vector<float> saved(1000);
  std::memcpy(saved.data(), (*snapshot)->BytesOf(0)->data(), 4000);
  EXPECT_EQ(saved, std::vector<float>(1000, 5.0F));
  for (int i = 0; i < 10; ++i) driver_.Advance();
  EXPECT_EQ(weight[0], 6.0F);
  EXPECT_EQ(driver_.host, 1) << "pinned staging memory";
  // And back.
  std::vector<std::byte> packed(4000, std::byte{0});
  auto stream = streams.training.For(entry.view);
  ASSERT_TRUE(stream.ok());
  ASSERT_TRUE(Unpack(packed, 0, entry.view, **stream).ok());
  ASSERT_TRUE(streams.training.Drain(In10()).ok());
  EXPECT_EQ(weight, std::vector<float>(1000, 0.0F));
}

// With a driver the devices of the machine can be opened; without one the error says what is
// missing, and nothing else is disturbed.
TEST(CudaDriver, IsFoundOrSaidToBeMissing) {
  const Result<std::unique_ptr<Device>> device = OpenCudaDevice(0, nullptr);
  if (device.ok()) {
    auto stream = (*device)->OpenStream();
    ASSERT_TRUE(stream.ok()) << stream.status().ToString();
    EXPECT_TRUE((*device)->AllocateHost(1 << 20).ok());
  } else {
    EXPECT_FALSE(device.status().message().empty());
    EXPECT_NE(device.status().message().find("CUDA"), std::string::npos)
        << device.status().message();
  }
}

}  // namespace
}  // namespace perdure
