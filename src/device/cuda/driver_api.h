// The few functions of the CUDA driver that copying needs, taken from libcuda.so.1 when the first
// device is opened. https://docs.nvidia.com/cuda/cuda-driver-api/ says what they do.
#pragma once

#include <cuda.h>

#include <memory>

#include "device/device.h"
#include "perdure/status.h"

namespace perdure {

struct DriverApi {
  decltype(&::cuInit) init = nullptr;
  decltype(&::cuGetErrorName) get_error_name = nullptr;
  decltype(&::cuGetErrorString) get_error_string = nullptr;
  decltype(&::cuDeviceGetCount) device_get_count = nullptr;
  decltype(&::cuDeviceGet) device_get = nullptr;
  decltype(&::cuDevicePrimaryCtxRetain) primary_ctx_retain = nullptr;
  decltype(&::cuDevicePrimaryCtxRelease) primary_ctx_release = nullptr;
  decltype(&::cuCtxPushCurrent) ctx_push = nullptr;
  decltype(&::cuCtxPopCurrent) ctx_pop = nullptr;
  decltype(&::cuStreamCreate) stream_create = nullptr;
  decltype(&::cuStreamDestroy) stream_destroy = nullptr;
  decltype(&::cuStreamWaitEvent) stream_wait_event = nullptr;
  decltype(&::cuStreamSynchronize) stream_synchronize = nullptr;
  decltype(&::cuEventCreate) event_create = nullptr;
  decltype(&::cuEventDestroy) event_destroy = nullptr;
  decltype(&::cuEventRecord) event_record = nullptr;
  decltype(&::cuEventQuery) event_query = nullptr;
  decltype(&::cuMemHostAlloc) mem_host_alloc = nullptr;
  decltype(&::cuMemFreeHost) mem_free_host = nullptr;
  decltype(&::cuMemcpyDtoHAsync) copy_to_host = nullptr;
  decltype(&::cuMemcpyHtoDAsync) copy_to_device = nullptr;
};

// kUnimplemented names the library or the function that is missing.
Result<DriverApi> LoadDriverApi();

// The device behind OpenCudaDevice, over any driver.
Result<std::unique_ptr<Device>> OpenCudaDevice(const DriverApi& api, int index,
                                               void* program_stream);

}  // namespace perdure
