// Devices as the driver names them, for the rest of runtime/. The public part: blockscale/device.h.
#pragma once

#include <vector>

#include "blockscale/device.h"
#include "runtime/cuda/driver.h"

namespace blockscale::runtime {

class DeviceList {
 public:
  /// Asks an initialised driver, which may be too old for kernels. Throws as raise_no_gpu if it
  /// shows no device; device.
  explicit DeviceList(const DriverTable& table);

  const std::vector<cuda::DeviceTraits>& traits() const { return traits_; }
  cu::Device handle(int ordinal) const { return handles_[static_cast<std::size_t>(ordinal)]; }
  /// Throws device if there is none with this handle.
  const cuda::DeviceTraits& with_handle(cu::Device handle) const;

 private:
  std::vector<cuda::DeviceTraits> traits_;  // by ordinal, as handles_
  std::vector<cu::Device> handles_;
};

/// Of driver(); asked once.
const DeviceList& device_list();

/// Throws device if no context is current on the calling thread.
cu::Device current_device_handle();

}  // namespace blockscale::runtime
