#include "blockscale/device.h"

#include <array>
#include <mutex>

#include "blockscale/error.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/driver.h"

namespace blockscale {
namespace runtime {

DeviceList::DeviceList(const DriverTable& table) {
  int count = 0;
  const cu::Result result = table.device_count.status(&count);
  if (result == cu::kNoDevice) raise_no_gpu(table.explain(table.device_count.name(), result));
  if (result != cu::kSuccess) table.raise(table.device_count.name(), result);
  if (count == 0) raise_no_gpu("the driver works but shows no device");
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cu::Device handle = 0;
    table.device_get(&handle, ordinal);
    const auto attribute = [&](cu::DeviceAttribute which) {
      int value = 0;
      table.device_attribute(&value, which, handle);
      return value;
    };
    const auto newer_attribute = [&](cu::DeviceAttribute which) {
      int value = 0;  // of drivers that do not know it, which doctor asks too
      (void)table.device_attribute.status(&value, which, handle);
      return value;
    };
    std::array<char, 256> name{};
    table.device_name(name.data(), static_cast<int>(name.size()) - 1, handle);
    std::size_t memory = 0;
    table.device_memory(&memory, handle);
    cuda::DeviceTraits traits;
    traits.ordinal = ordinal;
    traits.name = name.data();
    traits.architecture = attribute(cu::DeviceAttribute::compute_capability_major) * 10 +
                          attribute(cu::DeviceAttribute::compute_capability_minor);
    traits.multiprocessors = attribute(cu::DeviceAttribute::multiprocessors);
    traits.shared_bytes = newer_attribute(cu::DeviceAttribute::max_shared_bytes_per_block);
    traits.l2_bytes = attribute(cu::DeviceAttribute::l2_bytes);
    traits.memory_bytes = memory;
    traits_.push_back(traits);
    handles_.push_back(handle);
  }
}

const cuda::DeviceTraits& DeviceList::with_handle(cu::Device handle) const {
  for (std::size_t i = 0; i < handles_.size(); ++i) {
    if (handles_[i] == handle) return traits_[i];
  }
  throw Error(ErrorCode::device, "driver",
              "shows no device with the handle " + std::to_string(handle));
}

const DeviceList& device_list() {
  static const DeviceList* const list = new DeviceList(driver());
  return *list;
}

cu::Device current_device_handle() {
  const DriverTable& table = driver();
  cu::Device handle = 0;
  const cu::Result result = table.context_device.status(&handle);
  if (result != cu::kSuccess) {
    table.raise(table.context_device.name(), result,
                "no CUDA context is current on this thread: choose a device first");
  }
  return handle;
}

namespace {

/// Retained once a device and for good, as the CUDA run-time API does.
cu::Context primary_context(int ordinal) {
  static std::mutex mutex;
  static std::vector<cu::Context> contexts;
  const std::lock_guard lock(mutex);
  contexts.resize(device_list().traits().size());
  cu::Context& context = contexts[static_cast<std::size_t>(ordinal)];
  if (context == nullptr) {
    driver().primary_context_retain(&context, device_list().handle(ordinal));
  }
  return context;
}

}  // namespace
}  // namespace runtime

namespace cuda {

const std::vector<DeviceTraits>& devices() {
  return runtime::device_list().traits();
}

const DeviceTraits& current_device() {
  return runtime::device_list().with_handle(runtime::current_device_handle());
}

int device_of(const void* pointer) {
  const runtime::DriverTable& table = runtime::driver();
  int ordinal = -1;
  const auto address =
      static_cast<runtime::cu::DevicePointer>(reinterpret_cast<std::uintptr_t>(pointer));
  const runtime::cu::Result result = table.pointer_attribute.status(
      &ordinal, runtime::cu::PointerAttribute::device_ordinal, address);
  if (result == runtime::cu::kInvalidValue) return -1;  // not memory that CUDA knows
  if (result != runtime::cu::kSuccess) table.raise(table.pointer_attribute.name(), result);
  return ordinal;
}

void synchronize(void* stream) {
  runtime::driver().stream_synchronize(static_cast<runtime::cu::Stream>(stream));
}

DeviceScope::DeviceScope(int ordinal) {
  const auto& list = runtime::device_list();
  const auto count = static_cast<int>(list.traits().size());
  if (ordinal < 0 || ordinal >= count) {
    throw Error(ErrorCode::invalid_argument, "device",
                "is " + std::to_string(ordinal) + "; this machine has " + std::to_string(count) +
                    " CUDA devices, counted from 0");
  }
  const runtime::DriverTable& table = runtime::driver();
  runtime::cu::Device current = 0;
  if (table.context_device.status(&current) == runtime::cu::kSuccess &&
      current == list.handle(ordinal)) {
    return;
  }
  table.context_push(runtime::primary_context(ordinal));
  pushed_ = true;
}

DeviceScope::~DeviceScope() {
  runtime::cu::Context popped = nullptr;
  if (pushed_) (void)runtime::driver().context_pop.status(&popped);
}

}  // namespace cuda
}  // namespace blockscale
