// The functions of the fake driver. With BLOCKSCALE_OLD_DRIVER it lacks those of CUDA 12.
#include "tests/fake_libcuda.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <utility>

#include "runtime/cuda/measure_table.h"

namespace {

using blockscale::test::FakeCuda;
using blockscale::test::FakeLaunch;
namespace cu = blockscale::runtime::cu;
using blockscale::runtime::Graph;
using blockscale::runtime::GraphExec;

/// For what runs in a process of its own: BLOCKSCALE_FAKE_CUDA_FAILURE, "cuInit=100", and
/// BLOCKSCALE_FAKE_CUDA_CAPABILITY, "80".
std::map<std::string, int> failures_of_environment() {
  const char* const text = std::getenv("BLOCKSCALE_FAKE_CUDA_FAILURE");
  const char* const equals = text == nullptr ? nullptr : std::strchr(text, '=');
  if (equals == nullptr) return {};
  return {{std::string(text, equals), std::atoi(equals + 1)}};
}

FakeCuda& fake() {
  static FakeCuda* const state = [] {
    auto* const made = new FakeCuda();
    made->failures = failures_of_environment();
    if (const char* const text = std::getenv("BLOCKSCALE_FAKE_CUDA_CAPABILITY")) {
      made->compute_capability = std::atoi(text);
    }
    return made;
  }();
  return *state;
}

/// Counts a call; the error that it was told to return.
int enter(const char* function) {
  ++fake().calls[function];
  const auto found = fake().failures.find(function);
  return found == fake().failures.end() ? 0 : found->second;
}

#define ENTER(function)                          \
  const std::lock_guard fake_lock(fake().mutex); \
  if (const int failure = enter(function)) return failure

thread_local std::vector<std::intptr_t> contexts;  // of this thread: device + 1

cu::Context context_of(int device) {
  return reinterpret_cast<cu::Context>(static_cast<std::intptr_t>(device) + 1);
}

#if !defined(BLOCKSCALE_OLD_DRIVER)
thread_local double* captured = nullptr;  // what the graph in the making takes

/// Code that was loaded: up to the section table, where our fakes and real cubins end.
std::deque<std::string>& libraries() {
  static auto* const list = new std::deque<std::string>();
  return *list;
}

/// Names; a handle points to one.
std::deque<std::string>& kernels() {
  static auto* const list = new std::deque<std::string>();
  return *list;
}

/// What a handle of a graph or an event points to.
template <class Handle>
double& milliseconds_of(Handle handle) {
  return *reinterpret_cast<double*>(handle);
}

/// Where the bytes of a device's address are; null if they are not all of one allocation.
std::byte* bytes_at(cu::DevicePointer address, std::size_t bytes) {
  auto found = fake().memory.upper_bound(address);
  if (found == fake().memory.begin()) return nullptr;
  auto& [begin, memory] = *--found;
  return address - begin + bytes <= memory.size() ? memory.data() + (address - begin) : nullptr;
}

std::string code_of(const void* data) {
  std::uint64_t end = 0;
  std::memcpy(&end, static_cast<const char*>(data) + 40, sizeof end);
  return {static_cast<const char*>(data), end};
}
#endif

}  // namespace

extern "C" {

FakeCuda* fake_cuda() {
  return &fake();
}

int cuInit(unsigned) {
  ENTER("cuInit");
  return 0;
}

int cuDriverGetVersion(int* version) {
  ENTER("cuDriverGetVersion");
  *version = 13000;
  return 0;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == cu::kInvalidContext ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_OF_THE_FAKE";
  return 0;
}

int cuGetErrorString(int error, const char** text) {
  *text = error == cu::kInvalidContext ? "invalid device context" : "the fake was told to fail";
  return 0;
}

int cuDeviceGetCount(int* count) {
  ENTER("cuDeviceGetCount");
  *count = fake().devices;
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  ENTER("cuDeviceGet");
  if (ordinal < 0 || ordinal >= fake().devices) return 101;
  *device = ordinal;
  return 0;
}

int cuDeviceGetName(char* name, int size, int device) {
  ENTER("cuDeviceGetName");
  std::strncpy(name, ("Fake H200 number " + std::to_string(device)).c_str(),
               static_cast<std::size_t>(size));
  return 0;
}

int cuDeviceGetAttribute(int* value, cu::DeviceAttribute attribute, int) {
  ENTER("cuDeviceGetAttribute");
  switch (attribute) {
    case cu::DeviceAttribute::multiprocessors: *value = 132; return 0;
    case cu::DeviceAttribute::l2_bytes: *value = 60 << 20; return 0;
    case cu::DeviceAttribute::compute_capability_major:
      *value = fake().compute_capability / 10;
      return 0;
    case cu::DeviceAttribute::compute_capability_minor:
      *value = fake().compute_capability % 10;
      return 0;
    case cu::DeviceAttribute::max_shared_bytes_per_block:
      *value = (fake().compute_capability / 10 == 12 ? 99 : 227) << 10;
      return 0;
  }
  return cu::kInvalidValue;
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  ENTER("cuDeviceTotalMem_v2");
  *bytes = std::size_t{141} << 30;
  return 0;
}

int cuDevicePrimaryCtxRetain(cu::Context* context, int device) {
  ENTER("cuDevicePrimaryCtxRetain");
  *context = context_of(device);
  return 0;
}

int cuCtxGetDevice(int* device) {
  ENTER("cuCtxGetDevice");
  if (contexts.empty()) return cu::kInvalidContext;
  *device = static_cast<int>(contexts.back()) - 1;
  return 0;
}

int cuCtxPushCurrent_v2(cu::Context context) {
  ENTER("cuCtxPushCurrent_v2");
  contexts.push_back(reinterpret_cast<std::intptr_t>(context));
  return 0;
}

int cuCtxPopCurrent_v2(cu::Context* context) {
  ENTER("cuCtxPopCurrent_v2");
  if (contexts.empty()) return cu::kInvalidContext;
  *context = reinterpret_cast<cu::Context>(contexts.back());
  contexts.pop_back();
  return 0;
}

/// Addresses below 2^40 belong to the device that their bits from 32 on say, less 1.
int cuPointerGetAttribute(void* value, cu::PointerAttribute, cu::DevicePointer address) {
  ENTER("cuPointerGetAttribute");
  const auto device = static_cast<int>(address >> 32) - 1;
  if (address >> 40 != 0 || device < 0 || device >= fake().devices) return cu::kInvalidValue;
  std::memcpy(value, &device, sizeof device);
  return 0;
}

#if defined(BLOCKSCALE_OLD_DRIVER)
int cuMemcpyDtoHAsync_v2(void*, cu::DevicePointer, std::size_t, cu::Stream) {
  ENTER("cuMemcpyDtoHAsync_v2");
  return cu::kInvalidValue;  // it has no memory
}
#else
int cuMemcpyDtoHAsync_v2(void* to, cu::DevicePointer from, std::size_t bytes, cu::Stream) {
  ENTER("cuMemcpyDtoHAsync_v2");
  const std::byte* const at = bytes_at(from, bytes);
  if (at == nullptr) return cu::kInvalidValue;
  std::memcpy(to, at, bytes);
  return 0;
}
#endif

int cuStreamSynchronize(cu::Stream) {
  ENTER("cuStreamSynchronize");
  return 0;
}

int cuThreadExchangeStreamCaptureMode(cu::CaptureMode* mode) {
  ENTER("cuThreadExchangeStreamCaptureMode");
  const int before = fake().capture_mode;
  fake().capture_mode = static_cast<int>(*mode);
  *mode = static_cast<cu::CaptureMode>(before);
  return 0;
}

int cuStreamIsCapturing(cu::Stream stream, cu::CaptureStatus* status) {
  ENTER("cuStreamIsCapturing");
  if (contexts.empty()) return cu::kInvalidContext;
  *status = stream != nullptr && stream == fake().capturing ? cu::CaptureStatus::active
                                                            : cu::CaptureStatus::none;
  return 0;
}

#if !defined(BLOCKSCALE_OLD_DRIVER)
int cuLibraryLoadData(cu::Library* library, const void* code, void*, void**, unsigned, void*,
                      void**, unsigned) {
  ENTER("cuLibraryLoadData");
  fake().capture_mode_while_loading = fake().capture_mode;
  if (std::memcmp(code,
                  "\x7f"
                  "ELF",
                  4) != 0)
    return cu::kInvalidImage;
  *library = reinterpret_cast<cu::Library>(&libraries().emplace_back(code_of(code)));
  return 0;
}

int cuLibraryUnload(cu::Library library) {
  ENTER("cuLibraryUnload");
  return library == nullptr ? cu::kInvalidValue : 0;
}

int cuLibraryGetKernel(cu::Kernel* kernel, cu::Library library, const char* name) {
  ENTER("cuLibraryGetKernel");
  if (reinterpret_cast<std::string*>(library)->find(name) == std::string::npos) {
    return 500;
  }
  *kernel = reinterpret_cast<cu::Kernel>(&kernels().emplace_back(name));
  return 0;
}

int cuKernelGetAttribute(int* value, cu::FunctionAttribute, cu::Kernel, int) {
  ENTER("cuKernelGetAttribute");
  *value = 0;
  return 0;
}

int cuKernelSetAttribute(cu::FunctionAttribute attribute, int value, cu::Kernel kernel,
                         int device) {
  ENTER("cuKernelSetAttribute");
  fake().attributes[{*reinterpret_cast<std::string*>(kernel), std::to_string(device),
                     std::to_string(static_cast<int>(attribute))}] = value;
  return 0;
}

int cuKernelGetFunction(cu::Function* function, cu::Kernel kernel) {
  ENTER("cuKernelGetFunction");
  if (contexts.empty()) return cu::kInvalidContext;
  *function = reinterpret_cast<cu::Function>(kernel);
  return 0;
}

int cuFuncLoad(cu::Function function) {
  ENTER("cuFuncLoad");
  if (contexts.empty()) return cu::kInvalidContext;
  fake().loaded.insert(
      {*reinterpret_cast<std::string*>(function), static_cast<int>(contexts.back()) - 1});
  return 0;
}

int cuLaunchKernelEx(const cu::LaunchConfig* config, cu::Function function, void** parameters,
                     void** extra) {
  ENTER("cuLaunchKernelEx");
  if (contexts.empty()) return cu::kInvalidContext;
  if (extra != nullptr || function == nullptr) return 400;
  FakeLaunch launch;
  launch.kernel = *reinterpret_cast<std::string*>(function);
  launch.device = static_cast<int>(contexts.back()) - 1;
  launch.grid = {config->grid_x, config->grid_y, config->grid_z};
  launch.block = {config->block_x, config->block_y, config->block_z};
  launch.dynamic_shared_bytes = config->dynamic_shared_bytes;
  launch.stream = config->stream;
  for (std::uint32_t i = 0; i < config->attribute_count; ++i) {
    const cu::LaunchAttribute& attribute = config->attributes[i];
    if (attribute.id == cu::LaunchAttributeId::cluster_dimension) {
      launch.cluster = {attribute.cluster[0], attribute.cluster[1], attribute.cluster[2]};
    } else {
      launch.programmatic_dependent_launch =
          attribute.programmatic_stream_serialization_allowed != 0;
    }
  }
  const auto* const bytes = static_cast<const std::byte*>(parameters[0]);
  launch.parameters.assign(bytes, bytes + fake().parameter_bytes);
  (captured == nullptr ? fake().clock : *captured) +=
      fake().milliseconds ? fake().milliseconds(launch) : 1;
  fake().launches.push_back(std::move(launch));
  return 0;
}

int cuMemAlloc_v2(cu::DevicePointer* address, std::size_t bytes) {
  ENTER("cuMemAlloc_v2");
  if (contexts.empty()) return cu::kInvalidContext;
  // Behind all that the device has, so that freed memory is not given again.
  const auto device = static_cast<std::uint64_t>(contexts.back());
  const auto last = fake().memory.lower_bound((device + 1) << 32);
  *address = device << 32;
  if (last != fake().memory.begin() && std::prev(last)->first >> 32 == device) {
    *address = (std::prev(last)->first + std::prev(last)->second.size() + 511) / 256 * 256;
  }
  if (*address + bytes > (device + 1) << 32) return 2;  // out of memory
  fake().memory[*address].resize(bytes);
  return 0;
}

int cuMemFree_v2(cu::DevicePointer address) {
  ENTER("cuMemFree_v2");
  return fake().memory.erase(address) == 1 ? 0 : cu::kInvalidValue;
}

int cuMemsetD8_v2(cu::DevicePointer to, unsigned char value, std::size_t bytes) {
  ENTER("cuMemsetD8_v2");
  std::byte* const at = bytes_at(to, bytes);
  if (at == nullptr) return cu::kInvalidValue;
  std::memset(at, value, bytes);
  return 0;
}

int cuMemcpyHtoD_v2(cu::DevicePointer to, const void* from, std::size_t bytes) {
  ENTER("cuMemcpyHtoD_v2");
  std::byte* const at = bytes_at(to, bytes);
  if (at == nullptr) return cu::kInvalidValue;
  std::memcpy(at, from, bytes);
  return 0;
}

int cuMemcpyHtoDAsync_v2(cu::DevicePointer to, const void* from, std::size_t bytes, cu::Stream) {
  ENTER("cuMemcpyHtoDAsync_v2");
  std::byte* const at = bytes_at(to, bytes);
  if (at == nullptr) return cu::kInvalidValue;
  std::memcpy(at, from, bytes);
  return 0;
}

int cuMemcpyDtoH_v2(void* to, cu::DevicePointer from, std::size_t bytes) {
  ENTER("cuMemcpyDtoH_v2");
  const std::byte* const at = bytes_at(from, bytes);
  if (at == nullptr) return cu::kInvalidValue;
  std::memcpy(to, at, bytes);
  return 0;
}

int cuCtxSynchronize() {
  ENTER("cuCtxSynchronize");
  return 0;
}

int cuStreamCreate(cu::Stream* stream, unsigned) {
  ENTER("cuStreamCreate");
  *stream = reinterpret_cast<cu::Stream>(&fake());
  return 0;
}

int cuStreamDestroy_v2(cu::Stream) {
  ENTER("cuStreamDestroy_v2");
  return 0;
}

int cuStreamBeginCapture_v2(cu::Stream, cu::CaptureMode) {
  ENTER("cuStreamBeginCapture_v2");
  captured = new double(0);
  return 0;
}

// Graphs and events are milliseconds: what a graph's launches take, and when an event was recorded.
int cuStreamEndCapture(cu::Stream, Graph* graph) {
  ENTER("cuStreamEndCapture");
  *graph = reinterpret_cast<Graph>(std::exchange(captured, nullptr));
  return 0;
}

int cuGraphInstantiateWithFlags(GraphExec* executable, Graph graph, unsigned long long) {
  ENTER("cuGraphInstantiateWithFlags");
  *executable = reinterpret_cast<GraphExec>(new double(milliseconds_of(graph)));
  return 0;
}

int cuGraphLaunch(GraphExec graph, cu::Stream) {
  ENTER("cuGraphLaunch");
  fake().clock += milliseconds_of(graph);
  return 0;
}

int cuGraphDestroy(Graph graph) {
  ENTER("cuGraphDestroy");
  delete &milliseconds_of(graph);
  return 0;
}

int cuGraphExecDestroy(GraphExec graph) {
  ENTER("cuGraphExecDestroy");
  delete &milliseconds_of(graph);
  return 0;
}

int cuEventCreate(cu::Event* event, unsigned) {
  ENTER("cuEventCreate");
  *event = reinterpret_cast<cu::Event>(new double(0));
  return 0;
}

int cuEventRecord(cu::Event event, cu::Stream) {
  ENTER("cuEventRecord");
  milliseconds_of(event) = fake().clock;
  return 0;
}

int cuEventSynchronize(cu::Event) {
  ENTER("cuEventSynchronize");
  return 0;
}

int cuEventElapsedTime(float* milliseconds, cu::Event start, cu::Event stop) {
  ENTER("cuEventElapsedTime");
  *milliseconds = static_cast<float>(milliseconds_of(stop) - milliseconds_of(start));
  return 0;
}

int cuEventDestroy_v2(cu::Event event) {
  ENTER("cuEventDestroy_v2");
  delete &milliseconds_of(event);
  return 0;
}

int cuTensorMapEncodeTiled(blockscale::TensorMap* map, blockscale::TensorMapElement element,
                           std::uint32_t rank, void* address, const std::uint64_t* sizes,
                           const std::uint64_t*, const std::uint32_t*, const std::uint32_t*, int,
                           blockscale::TensorMapSwizzle, blockscale::TensorMapL2Promotion,
                           blockscale::TensorMapFill) {
  ENTER("cuTensorMapEncodeTiled");
  map->words[0] = reinterpret_cast<std::uintptr_t>(address);
  map->words[1] = static_cast<std::uint64_t>(element) << 32 | rank;
  map->words[2] = sizes[0];
  return 0;
}
#endif

}  // extern "C"
