// CUDA devices and the calling thread's device. Works, and says that there is none, without CUDA.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace blockscale::cuda {

/// What plans are made for and kernels run on, as the driver says it. By default an H200.
struct Chip {
  std::string name = "NVIDIA H200";
  int architecture = 90;  // compute capability: 90 stands for 9.0
  int multiprocessors = 132;
  std::int64_t shared_bytes = 227 << 10;  // of a block, dynamic + static, with opt-in
  std::int64_t l2_bytes = 60 << 20;
  bool plain_only = false;  // products go by plain kernels alone, whatever others there are

  friend bool operator==(const Chip&, const Chip&) = default;
};

/// Chips that plans can be described for without one, by the driver's name. chip_named takes a part
/// of it, as "H200", "H20", "B200", "RTX 5090" or "GB10". Throws invalid_argument, with all names,
/// unless it is of one chip.
const std::vector<Chip>& known_chips();
const Chip& chip_named(const std::string& name);

struct DeviceTraits : Chip {
  int ordinal = 0;
  std::uint64_t memory_bytes = 0;
};

/// Every device that the driver shows, by ordinal; at least one. Asked once. Throws not_found, with
/// a text that begins with "no GPU", if there is no driver or no device; unsupported if the driver
/// is too old for kernels, and device if it does not work. So do all of the functions below.
const std::vector<DeviceTraits>& devices();

/// The device of the context that is current on the calling thread. Throws device if none is.
const DeviceTraits& current_device();

/// That of the device that is current, else of the first one, else an H200: what plans are
/// described for unless another chip is named.
Chip default_chip();

/// The device that holds the memory at `pointer`, or -1 if that is memory of the host that CUDA
/// does not know. Throws device for memory that is gone.
int device_of(const void* pointer);

/// Waits until everything is done that the current device's `stream` (a CUstream; null: the legacy
/// default one) was given.
void synchronize(void* stream);

/// Makes a device's primary context (the one of the CUDA run-time API) current on the calling
/// thread while it lives, unless a context of that device is current already.
class DeviceScope {
 public:
  /// Throws invalid_argument (argument "device") if there is none of this ordinal.
  explicit DeviceScope(int ordinal);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  bool pushed_ = false;
};

}  // namespace blockscale::cuda
