#include "device/cuda/driver_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace perdure {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

template <class Function>
Status Take(void* library, const char* name, Function& function) {
  // The driver keeps older versions of a function under its bare name; the suffix is part of it.
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function != nullptr) return Ok();
  return Status(Code::kUnimplemented,
                fmt::format("the CUDA driver ({}) has no {}; it is too old", kLibrary, name));
}

}  // namespace

Result<DriverApi> LoadDriverApi() {
  // Never closed: other users of the driver in this process may outlive us.
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Status(Code::kUnimplemented,
                  fmt::format("the CUDA driver cannot be loaded ({}); is it installed on this "
                              "machine, and visible in this container?",
                              ::dlerror()));
  }
  DriverApi api;
  PERDURE_RETURN_IF_ERROR(Take(library, "cuInit", api.init));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuGetErrorName", api.get_error_name));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuGetErrorString", api.get_error_string));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuDeviceGetCount", api.device_get_count));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuDeviceGet", api.device_get));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuDevicePrimaryCtxRetain", api.primary_ctx_retain));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuDevicePrimaryCtxRelease_v2", api.primary_ctx_release));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuCtxPushCurrent_v2", api.ctx_push));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuCtxPopCurrent_v2", api.ctx_pop));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuStreamCreate", api.stream_create));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuStreamDestroy_v2", api.stream_destroy));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuStreamWaitEvent", api.stream_wait_event));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuStreamSynchronize", api.stream_synchronize));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuEventCreate", api.event_create));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuEventDestroy_v2", api.event_destroy));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuEventRecord", api.event_record));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuEventQuery", api.event_query));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuMemHostAlloc", api.mem_host_alloc));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuMemFreeHost", api.mem_free_host));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuMemcpyDtoHAsync_v2", api.copy_to_host));
  PERDURE_RETURN_IF_ERROR(Take(library, "cuMemcpyHtoDAsync_v2", api.copy_to_device));
  return api;
}

}  // namespace perdure
