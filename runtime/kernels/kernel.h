// Kernels that the driver has loaded, and their launch.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "core/launch_shape.h"
#include "runtime/cuda/driver.h"
#include "runtime/kernels/architecture.h"
#include "runtime/kernels/kernel_spec.h"
#include "runtime/kernels/kernel_store.h"

namespace blockscale::runtime {

/// One loaded kernel, good for every context and device of its architecture. The driver keeps its
/// code until the process ends.
class Kernel {
 public:
  /// Loads it. Throws what KernelStore::image and driver() throw, and device.
  Kernel(KernelSpec spec, KernelStore& store);

  const KernelSpec& spec() const { return spec_; }
  const KernelResources& resources() const { return resources_; }
  cu::Kernel handle() const { return handle_; }

  /// Brings its code to the current context, as the first launch there does otherwise: that one
  /// waits for all work of the device.
  void load_code() const;

  /// What a launch of this shape needs from a device beyond the defaults: more than 48 KiB of
  /// shared memory, clusters of more than 8 blocks. Set once a device, for all shapes.
  void allow(const LaunchShape& shape) const;

 private:
  KernelSpec spec_;
  KernelResources resources_;
  cu::Kernel handle_ = nullptr;
  // Bit i: device i allows it.
  mutable std::atomic<std::uint64_t> large_shared_memory_ = 0;
  mutable std::atomic<std::uint64_t> large_clusters_ = 0;
};

/// The kernels of one operation, each loaded when it is first asked for. Specs of the same name
/// that follow one another (for_architectures) are one kernel, for chips of several architectures.
class KernelSet {
 public:
  explicit KernelSet(std::vector<KernelSpec> specs, KernelStore& store = KernelStore::instance());

  std::size_t size() const { return first_.size() - 1; }
  /// Whether kernel `index`, or any kernel, is there for a chip of this compute capability.
  bool has(std::size_t index, int compute_capability) const;
  bool has_any(int compute_capability) const;
  /// Kernel `index` for such a chip. Throws `unsupported` if it is not there.
  const KernelSpec& spec(std::size_t index, int compute_capability) const;
  /// The chips that there are kernels for: "9.0, 10.x and 12.x".
  std::string chips() const;
  /// Thread-safe; costs an atomic load once the kernel is loaded. Throws `unsupported` if it is not
  /// there for such a chip, and as Kernel's constructor does; then it tries again at the next call.
  const Kernel& get(std::size_t index, int compute_capability);
  /// Loads every kernel that is there for such a chip, with its code in the current context; how
  /// many they are. Throws as `get` and device.
  int load_all(int compute_capability);

 private:
  struct Slot {
    std::atomic<const Kernel*> kernel = nullptr;
    std::unique_ptr<const Kernel> owned;
    std::mutex loading;
  };

  /// The number of the kernel's spec for such a chip; that of all specs where there is none.
  std::size_t find(std::size_t index, int compute_capability) const;
  std::size_t find_or_throw(std::size_t index, int compute_capability) const;

  std::vector<KernelSpec> specs_;
  std::vector<Architecture> architectures_;  // of each
  std::vector<std::size_t> first_;           // spec of each kernel, and how many specs there are
  KernelStore& store_;
  std::unique_ptr<Slot[]> slots_;
};

/// Launches on `stream` (a CUstream or cudaStream_t; null: the legacy default stream) in the
/// context that is current on the calling thread, which must be the stream's. Returns at once;
/// neither allocates nor synchronises, and may be captured in a graph. `parameters` are copied.
/// Throws invalid_argument (shape or size do not fit the kernel) or device.
void launch(const Kernel& kernel, const LaunchShape& shape, void* stream, const void* parameters,
            std::size_t bytes);

template <class Parameters>
void launch(const Kernel& kernel, const LaunchShape& shape, void* stream,
            const Parameters& parameters) {
  static_assert(std::is_trivially_copyable_v<Parameters>);
  launch(kernel, shape, stream, &parameters, sizeof parameters);
}

}  // namespace blockscale::runtime
