// How a copy is ordered:
//  1 FollowProgram: an event on the program's stream, which the side stream waits for
//  2 copies are queued on the side stream, which the default stream does not block
//    (CU_STREAM_NON_BLOCKING): the program's kernels and our copies run beside each other
//  3 Mark: an event on the side stream; HoldProgram makes the program's stream wait for it, on the
//    device; Wait looks at it from the host, up to the deadline
// Everything runs in the device's primary context, pushed and popped around each call: the
// program's own current context is left as it was.
#include "device/cuda/cuda_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"
#include "device/cuda/driver_api.h"

namespace perdure {
namespace {

constexpr Duration kPollFirst = std::chrono::microseconds(20);
constexpr Duration kPollMost = std::chrono::milliseconds(1);

// The primary context of one device. Shared: pinned memory may outlive the device object.
class Context {
 public:
  Context(const DriverApi& api, CUdevice device, CUcontext context)
      : api_(api), device_(device), context_(context) {}
  ~Context() { static_cast<void>(api_.primary_ctx_release(device_)); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const DriverApi& api() const { return api_; }
  CUcontext get() const { return context_; }

 private:
  const DriverApi api_;
  const CUdevice device_;
  const CUcontext context_;
};

Status StatusOf(const DriverApi& api, CUresult result, std::string_view doing) {
  if (result == CUDA_SUCCESS) return Ok();
  const char* name = nullptr;
  const char* text = nullptr;
  static_cast<void>(api.get_error_name(result, &name));
  static_cast<void>(api.get_error_string(result, &text));
  const Code code = result == CUDA_ERROR_OUT_OF_MEMORY ? Code::kResourceExhausted : Code::kInternal;
  return Status(code, fmt::format("{}: {} ({})", doing, text == nullptr ? "unknown" : text,
                                  name == nullptr ? "?" : name));
}

// Makes the context the thread's current one for the length of a scope.
class InContext {
 public:
  explicit InContext(const Context& context) : context_(context) {
    status_ = StatusOf(context.api(), context.api().ctx_push(context.get()), "cuCtxPushCurrent");
  }
  ~InContext() {
    CUcontext popped = nullptr;
    if (status_.ok()) static_cast<void>(context_.api().ctx_pop(&popped));
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
  const Status& status() const { return status_; }

 private:
  const Context& context_;
  Status status_;
};

class CudaStream final : public CopyStream {
 public:
  CudaStream(std::shared_ptr<const Context> context, CUstream stream, CUstream program,
             CUevent follow)
      : context_(std::move(context)), stream_(stream), program_(program), follow_(follow) {}

  ~CudaStream() override {
    const DriverApi& api = context_->api();
    const InContext current(*context_);
    // Nothing may still be writing into memory that is given back after this.
    static_cast<void>(api.stream_synchronize(stream_));
    static_cast<void>(api.stream_destroy(stream_));
    static_cast<void>(api.event_destroy(follow_));
    MutexLock lock(mutex_);
    for (const auto& [number, event] : marks_) static_cast<void>(api.event_destroy(event));
    for (const CUevent event : free_) static_cast<void>(api.event_destroy(event));
  }

  Status FollowProgram() override {
    const DriverApi& api = context_->api();
    const InContext current(*context_);
    PERDURE_RETURN_IF_ERROR(current.status());
    PERDURE_RETURN_IF_ERROR(StatusOf(api, api.event_record(follow_, program_), "cuEventRecord"));
    return StatusOf(api, api.stream_wait_event(stream_, follow_, 0), "cuStreamWaitEvent");
  }

  Status HoldProgram(StreamPoint point) override {
    const DriverApi& api = context_->api();
    const InContext current(*context_);
    PERDURE_RETURN_IF_ERROR(current.status());
    MutexLock lock(mutex_);  // so that Wait does not recycle the event meanwhile
    const CUevent event = EventOf(point);
    if (event == nullptr) return Ok();
    return StatusOf(api, api.stream_wait_event(program_, event, 0), "cuStreamWaitEvent");
  }

  Status ToHost(std::byte* host, const std::byte* device, std::int64_t bytes) override {
    const DriverApi& api = context_->api();
    const InContext current(*context_);
    PERDURE_RETURN_IF_ERROR(current.status());
    return StatusOf(api,
                    api.copy_to_host(host, reinterpret_cast<CUdeviceptr>(device),
                                     static_cast<std::size_t>(bytes), stream_),
                    "copying from the device");
  }

  Status ToDevice(std::byte* device, const std::byte* host, std::int64_t bytes) override {
    const DriverApi& api = context_->api();
    const InContext current(*context_);
    PERDURE_RETURN_IF_ERROR(current.status());
    return StatusOf(api,
                    api.copy_to_device(reinterpret_cast<CUdeviceptr>(device), host,
                                       static_cast<std::size_t>(bytes), stream_),
                    "copying to the device");
  }

  Result<StreamPoint> Mark() override {
    const DriverApi& api = context_->api();
    const InContext current(*context_);
    PERDURE_RETURN_IF_ERROR(current.status());
    MutexLock lock(mutex_);
    CUevent event = nullptr;
    if (!free_.empty()) {
      event = free_.back();
      free_.pop_back();
    } else {
      PERDURE_RETURN_IF_ERROR(
          StatusOf(api, api.event_create(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
    }
    marks_.emplace_back(++last_, event);
    PERDURE_RETURN_IF_ERROR(StatusOf(api, api.event_record(event, stream_), "cuEventRecord"));
    return StreamPoint{last_};
  }

  Status Wait(StreamPoint point, Deadline deadline) override {
    const DriverApi& api = context_->api();
    const InContext current(*context_);
    PERDURE_RETURN_IF_ERROR(current.status());
    for (Duration pause = kPollFirst;; pause = std::min(2 * pause, kPollMost)) {
      {
        MutexLock lock(mutex_);
        const CUevent event = EventOf(point);
        if (event == nullptr) return Ok();  // an earlier Wait has seen it pass
        const CUresult result = api.event_query(event);
        if (result == CUDA_SUCCESS) {
          while (!marks_.empty() && marks_.front().first <= point.number) {
            free_.push_back(marks_.front().second);
            marks_.pop_front();
          }
          return Ok();
        }
        if (result != CUDA_ERROR_NOT_READY) return StatusOf(api, result, "a copy on the device");
      }
      if (deadline.Passed(RealClock().Now())) {
        return Status(Code::kDeadlineExceeded, "the device did not finish copying in time");
      }
      SleepFor(pause);
    }
  }

 private:
  CUevent EventOf(StreamPoint point) const PERDURE_REQUIRES(mutex_) {
    for (const auto& [number, event] : marks_) {
      if (number == point.number) return event;
    }
    return nullptr;
  }

  const std::shared_ptr<const Context> context_;
  const CUstream stream_;
  const CUstream program_;
  const CUevent follow_;

  Mutex mutex_;
  std::uint64_t last_ PERDURE_GUARDED_BY(mutex_) = 0;
  // Bounded by the Marks that nobody has waited for: a few for each save.
  std::deque<std::pair<std::uint64_t, CUevent>> marks_ PERDURE_GUARDED_BY(mutex_);
  std::vector<CUevent> free_ PERDURE_GUARDED_BY(mutex_);
};

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<const Context> context, CUstream program)
      : context_(std::move(context)), program_(program) {}

  Result<std::unique_ptr<CopyStream>> OpenStream() override {
    const DriverApi& api = context_->api();
    const InContext current(*context_);
    PERDURE_RETURN_IF_ERROR(current.status());
    CUstream stream = nullptr;
    PERDURE_RETURN_IF_ERROR(
        StatusOf(api, api.stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
    CUevent follow = nullptr;
    const Status created =
        StatusOf(api, api.event_create(&follow, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    if (!created.ok()) {
      static_cast<void>(api.stream_destroy(stream));
      return created;
    }
    return std::unique_ptr<CopyStream>(
        std::make_unique<CudaStream>(context_, stream, program_, follow));
  }

  // Pinned: a copy into other memory would go through a buffer of the driver, and wait for it.
  Result<HostMemory> AllocateHost(std::int64_t bytes) override {
    if (bytes == 0) return HostMemory();
    const DriverApi& api = context_->api();
    const InContext current(*context_);
    PERDURE_RETURN_IF_ERROR(current.status());
    void* data = nullptr;
    PERDURE_RETURN_IF_ERROR(StatusOf(
        api, api.mem_host_alloc(&data, static_cast<std::size_t>(bytes), CU_MEMHOSTALLOC_PORTABLE),
        fmt::format("allocating {} bytes of pinned host memory", bytes)));
    return HostMemory(static_cast<std::byte*>(data), bytes,
                      [context = context_](std::byte* memory, std::int64_t) {
                        const InContext in(*context);
                        static_cast<void>(context->api().mem_free_host(memory));
                      });
  }

 private:
  const std::shared_ptr<const Context> context_;
  const CUstream program_;
};

}  // namespace

Result<std::unique_ptr<Device>> OpenCudaDevice(const DriverApi& api, int index,
                                               void* program_stream) {
  PERDURE_RETURN_IF_ERROR(StatusOf(api, api.init(0), "initialising the CUDA driver"));
  int count = 0;
  PERDURE_RETURN_IF_ERROR(StatusOf(api, api.device_get_count(&count), "cuDeviceGetCount"));
  if (index < 0 || index >= count) {
    return Status(Code::kInvalidArgument,
                  fmt::format("there is no CUDA device {}: this process sees {}", index, count));
  }
  CUdevice device = 0;
  PERDURE_RETURN_IF_ERROR(StatusOf(api, api.device_get(&device, index), "cuDeviceGet"));
  CUcontext context = nullptr;
  PERDURE_RETURN_IF_ERROR(
      StatusOf(api, api.primary_ctx_retain(&context, device), "cuDevicePrimaryCtxRetain"));
  // The default stream by the name that means the same whichever way the program was compiled.
  const CUstream program =
      program_stream == nullptr ? CU_STREAM_LEGACY : static_cast<CUstream>(program_stream);
  return std::unique_ptr<Device>(
      std::make_unique<CudaDevice>(std::make_shared<const Context>(api, device, context), program));
}

Result<std::unique_ptr<Device>> OpenCudaDevice(int index, void* program_stream) {
  PERDURE_ASSIGN_OR_RETURN(const DriverApi api, LoadDriverApi());
  return OpenCudaDevice(api, index, program_stream);
}

}  // namespace perdure
