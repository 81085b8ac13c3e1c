// Tests and benchmarks on a GPU: memory, streams and graphs through the driver, no CUDA toolkit.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "blockscale/device.h"
#include "blockscale/error.h"
#include "runtime/driver.h"

namespace blockscale::test {

namespace cu = runtime::cu;
using Graph = struct GraphObject*;
using GraphExecutable = struct GraphExecutableObject*;

/// What tests need of the driver and the library does not.
class GpuDriver : public runtime::DriverLibrary {
 public:
  using DriverLibrary::DriverLibrary;

  template <class... Arguments>
  using F = runtime::DriverFunction<Arguments...>;
  using P = cu::DevicePointer;

  F<P*, std::size_t> allocate{*this, "cuMemAlloc_v2"};
  F<P> free{*this, "cuMemFree_v2"};
  F<P, const void*, std::size_t> copy_in{*this, "cuMemcpyHtoD_v2"};
  F<void*, P, std::size_t> copy_out{*this, "cuMemcpyDtoH_v2"};
  F<P, unsigned char, std::size_t> fill{*this, "cuMemsetD8_v2"};
  F<> synchronize{*this, "cuCtxSynchronize"};
  F<cu::Stream*, unsigned> stream_create{*this, "cuStreamCreate"};
  F<cu::Stream> stream_destroy{*this, "cuStreamDestroy_v2"};
  F<cu::Stream> stream_synchronize{*this, "cuStreamSynchronize"};
  F<cu::Stream, cu::CaptureMode> begin_capture{*this, "cuStreamBeginCapture_v2"};
  F<cu::Stream, Graph*> end_capture{*this, "cuStreamEndCapture"};
  F<GraphExecutable*, Graph, unsigned long long> graph_instantiate{*this,
                                                                   "cuGraphInstantiateWithFlags"};
  F<GraphExecutable, cu::Stream> graph_launch{*this, "cuGraphLaunch"};
  F<Graph> graph_destroy{*this, "cuGraphDestroy"};
  F<GraphExecutable> graph_executable_destroy{*this, "cuGraphExecDestroy"};
  F<cu::Event*, unsigned> event_create{*this, "cuEventCreate"};
  F<cu::Event> event_destroy{*this, "cuEventDestroy_v2"};
  F<cu::Event, cu::Stream> event_record{*this, "cuEventRecord"};
  F<cu::Event> event_synchronize{*this, "cuEventSynchronize"};
  F<float*, cu::Event, cu::Event> event_elapsed_ms{*this, "cuEventElapsedTime"};
};

inline const GpuDriver& gpu_driver() {
  static const GpuDriver table(runtime::driver().library());
  return table;
}

/// Whether kernels can run here. Throws if a driver is there and does not work, and if there is no
/// GPU although BLOCKSCALE_REQUIRE_GPU is set.
inline bool has_gpu() {
  try {
    if (!cuda::devices().empty()) return true;
  } catch (const Error& error) {
    const bool none =
        error.code() == ErrorCode::not_found ||
        std::string_view(error.what()).find("CUDA_ERROR_NO_DEVICE") != std::string_view::npos;
    if (!none) throw;
  }
  if (std::getenv("BLOCKSCALE_REQUIRE_GPU") != nullptr) {
    throw Error(ErrorCode::not_found, "GPU", "is required by BLOCKSCALE_REQUIRE_GPU");
  }
  return false;
}

/// A fixture whose tests run with device 0 current, or say that they are skipped.
class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU";
    device_ = std::make_unique<cuda::DeviceScope>(0);
  }
  void TearDown() override {
    if (device_ != nullptr) gpu_driver().synchronize();
  }

 private:
  std::unique_ptr<cuda::DeviceScope> device_;
};

/// Elements of T in device memory; copies to and from it wait for all work of the device.
template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t count) : count_(count) {
    if (count > 0) gpu_driver().allocate(&address_, bytes());
  }
  explicit DeviceBuffer(std::span<const T> values) : DeviceBuffer(values.size()) { upload(values); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : address_(std::exchange(other.address_, 0)), count_(std::exchange(other.count_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;
  ~DeviceBuffer() {
    if (address_ != 0) (void)gpu_driver().free.status(address_);
  }

  T* data() const {
    return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address_));  // NOLINT: a device's
  }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }

  void upload(std::span<const T> values) {
    if (!values.empty()) gpu_driver().copy_in(address_, values.data(), values.size_bytes());
  }
  void fill(unsigned char byte) {
    if (count_ > 0) gpu_driver().fill(address_, byte, bytes());
  }
  std::vector<T> download() const {
    gpu_driver().synchronize();
    std::vector<T> values(count_);
    if (count_ > 0) gpu_driver().copy_out(values.data(), address_, bytes());
    return values;
  }

 private:
  cu::DevicePointer address_ = 0;
  std::size_t count_ = 0;
};

/// A stream that does not wait for the legacy default stream.
class Stream {
 public:
  Stream() { gpu_driver().stream_create(&handle_, kNonBlocking); }
  ~Stream() { (void)gpu_driver().stream_destroy.status(handle_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cu::Stream get() const { return handle_; }
  void synchronize() const { gpu_driver().stream_synchronize(handle_); }

  /// What `enqueue` puts on this stream, as a graph that can be launched.
  template <class Enqueue>
  GraphExecutable capture(Enqueue enqueue) const {
    gpu_driver().begin_capture(handle_, cu::CaptureMode::global);
    Graph graph = nullptr;
    try {
      enqueue();
    } catch (...) {
      (void)gpu_driver().end_capture.status(handle_, &graph);
      throw;
    }
    gpu_driver().end_capture(handle_, &graph);
    GraphExecutable executable = nullptr;
    gpu_driver().graph_instantiate(&executable, graph, 0);
    gpu_driver().graph_destroy(graph);
    return executable;
  }

 private:
  static constexpr unsigned kNonBlocking = 1;
  cu::Stream handle_ = nullptr;
};

}  // namespace blockscale::test
