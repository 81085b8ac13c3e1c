// The CUDA driver, libcuda.so.1, found at run time: one table of every function that the library
// uses, with prototypes of our own. Those that only tests and benchmarks need are in
// runtime/cuda/measure_table.h. runtime/cuda/driver_test.cpp compares both tables with cuda.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor_map.h"
#include "runtime/cuda/dynamic_library.h"

namespace blockscale::runtime {

/// The driver's types. Handles are opaque.
namespace cu {
using Result = int;  // 0 is success
using Device = int;
using DevicePointer = unsigned long long;
using Context = struct ContextObject*;
using Library = struct LibraryObject*;
using Kernel = struct KernelObject*;
using Function = struct FunctionObject*;
using Stream = struct StreamObject*;
using Event = struct EventObject*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidImage = 200;
inline constexpr Result kInvalidContext = 201;

enum class DeviceAttribute : int {
  multiprocessors = 16,
  l2_bytes = 38,
  compute_capability_major = 75,
  compute_capability_minor = 76,
  max_shared_bytes_per_block = 97,  // with opt-in
};

enum class FunctionAttribute : int {
  local_bytes = 3,
  registers = 4,
  max_dynamic_shared_bytes = 8,
  non_portable_cluster_size = 14,
};

enum class PointerAttribute : int { device_ordinal = 9 };

enum class CaptureMode : int { global = 0, thread_local_ = 1, relaxed = 2 };

enum class CaptureStatus : int { none = 0, active = 1, invalidated = 2 };

enum class LaunchAttributeId : int {
  cluster_dimension = 4,
  programmatic_stream_serialization = 6,
};

/// CUlaunchAttribute: the value is a union of 64 bytes.
struct LaunchAttribute {
  LaunchAttributeId id;
  std::uint32_t padding;
  union {
    std::uint32_t cluster[3];
    int programmatic_stream_serialization_allowed;
    unsigned long long bytes[8];
  };
};

/// CUlaunchConfig.
struct LaunchConfig {
  std::uint32_t grid_x, grid_y, grid_z;
  std::uint32_t block_x, block_y, block_z;
  std::uint32_t dynamic_shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  std::uint32_t attribute_count;
};
}  // namespace cu

/// The open library and the words of its errors.
class DriverLibrary {
 public:
  explicit DriverLibrary(DynamicLibrary library);
  DriverLibrary(const DriverLibrary&) = delete;
  DriverLibrary& operator=(const DriverLibrary&) = delete;

  const DynamicLibrary& library() const { return library_; }
  /// Functions that are used and that this driver does not have.
  const std::vector<std::string>& missing() const { return missing_; }

  /// "cuInit failed with error 100 (CUDA_ERROR_NO_DEVICE): no CUDA-capable device is detected".
  std::string explain(const char* function, cu::Result result) const;
  /// Throws `device` with that text, and with `detail` if there is one.
  [[noreturn]] void raise(const char* function, cu::Result result,
                          const std::string& detail = {}) const;

  template <class Function>
  void load(const char* name, Function*& function) {
    if (!library_.load(name, function)) missing_.emplace_back(name);
  }

 private:
  DynamicLibrary library_;
  std::vector<std::string> missing_;
  cu::Result (*error_name_)(cu::Result, const char**) = nullptr;
  cu::Result (*error_string_)(cu::Result, const char**) = nullptr;
};

/// One function of the driver. Called, it throws `device` with the driver's text if it fails.
template <class... Arguments>
class DriverFunction {
 public:
  DriverFunction(DriverLibrary& library, const char* name) : library_(library), name_(name) {
    library.load(name, pointer_);
  }

  void operator()(Arguments... arguments) const {
    const cu::Result result = pointer_(arguments...);
    if (result != cu::kSuccess) [[unlikely]]
      library_.raise(name_, result);
  }
  /// The same, but returns what the driver says. The function must be there.
  cu::Result status(Arguments... arguments) const { return pointer_(arguments...); }
  explicit operator bool() const { return pointer_ != nullptr; }
  const char* name() const { return name_; }

  using Pointer = cu::Result (*)(Arguments...);

 private:
  const DriverLibrary& library_;
  const char* name_;
  Pointer pointer_ = nullptr;
};

/// Every function that the library uses. What a driver lacks is null, and is in `missing`.
class DriverTable : public DriverLibrary {
 public:
  using DriverLibrary::DriverLibrary;

  template <class... Arguments>
  using F = DriverFunction<Arguments...>;
  using D = cu::Device;

  F<unsigned> init{*this, "cuInit"};
  F<int*> driver_version{*this, "cuDriverGetVersion"};

  F<int*> device_count{*this, "cuDeviceGetCount"};
  F<D*, int> device_get{*this, "cuDeviceGet"};
  F<char*, int, D> device_name{*this, "cuDeviceGetName"};
  F<int*, cu::DeviceAttribute, D> device_attribute{*this, "cuDeviceGetAttribute"};
  F<std::size_t*, D> device_memory{*this, "cuDeviceTotalMem_v2"};

  F<cu::Context*, D> primary_context_retain{*this, "cuDevicePrimaryCtxRetain"};
  F<D*> context_device{*this, "cuCtxGetDevice"};
  F<cu::Context> context_push{*this, "cuCtxPushCurrent_v2"};
  F<cu::Context*> context_pop{*this, "cuCtxPopCurrent_v2"};
  F<void*, cu::PointerAttribute, cu::DevicePointer> pointer_attribute{*this,
                                                                      "cuPointerGetAttribute"};
  F<void*, cu::DevicePointer, std::size_t, cu::Stream> copy_to_host{*this, "cuMemcpyDtoHAsync_v2"};
  F<cu::Stream> stream_synchronize{*this, "cuStreamSynchronize"};
  F<cu::CaptureMode*> exchange_capture_mode{*this, "cuThreadExchangeStreamCaptureMode"};
  F<cu::Stream, cu::CaptureStatus*> stream_is_capturing{*this, "cuStreamIsCapturing"};

  /// The options of the just-in-time compiler and of libraries are not used.
  F<cu::Library*, const void*, void*, void**, unsigned, void*, void**, unsigned> library_load{
      *this, "cuLibraryLoadData"};
  F<cu::Library> library_unload{*this, "cuLibraryUnload"};
  F<cu::Kernel*, cu::Library, const char*> library_kernel{*this, "cuLibraryGetKernel"};
  F<int*, cu::FunctionAttribute, cu::Kernel, D> kernel_attribute{*this, "cuKernelGetAttribute"};
  F<cu::FunctionAttribute, int, cu::Kernel, D> kernel_set_attribute{*this, "cuKernelSetAttribute"};
  /// A kernel's function in the current context, and its code, which is otherwise brought there by
  /// the first launch.
  F<cu::Function*, cu::Kernel> kernel_function{*this, "cuKernelGetFunction"};
  F<cu::Function> function_load{*this, "cuFuncLoad"};
  /// The function may be a kernel of a library; that of the current context is then launched.
  F<const cu::LaunchConfig*, cu::Function, void**, void**> launch{*this, "cuLaunchKernelEx"};
  F<TensorMap*, TensorMapElement, std::uint32_t, void*, const std::uint64_t*, const std::uint64_t*,
    const std::uint32_t*, const std::uint32_t*, int, TensorMapSwizzle, TensorMapL2Promotion,
    TensorMapFill>
      tensor_map_encode_tiled{*this, "cuTensorMapEncodeTiled"};
};

/// The process's driver, opened at the first call: BLOCKSCALE_LIBCUDA if it is set, else
/// libcuda.so.1. Whether it is there, whole or works is not checked. Never closed.
const DriverTable& find_driver();

/// What every call for a device throws where there is none: not_found, of no argument, with a text
/// that begins with "no GPU".
[[noreturn]] void raise_no_gpu(const std::string& why);

/// cuInit. Throws as raise_no_gpu if the driver says that there is no device; else device.
void initialise(const DriverTable& table);

/// Throws as raise_no_gpu (there is no driver, or no device), unsupported (it is too old) or device
/// (it does not work) unless kernels can be used with this driver, which it initialises.
void require_usable(const DriverTable& table);

/// find_driver(), checked once: throws as require_usable does and tries again at the next call.
const DriverTable& driver();

/// While it lives, what this thread does beside a graph's capture (loading a kernel) does not
/// disturb it.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const DriverTable& table) : table_(table) {
    table_.exchange_capture_mode(&mode_);
  }
  ~RelaxedCapture() { (void)table_.exchange_capture_mode.status(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const DriverTable& table_;
  cu::CaptureMode mode_ = cu::CaptureMode::relaxed;
};

/// Whether launches on a stream are captured, or cannot be asked for.
bool is_capturing(void* stream);

}  // namespace blockscale::runtime
