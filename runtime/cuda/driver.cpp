#include "runtime/cuda/driver.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "blockscale/error.h"

namespace blockscale::runtime {
namespace {

constexpr const char* kDriverName = "libcuda.so.1";

}  // namespace

DriverLibrary::DriverLibrary(DynamicLibrary library) : library_(std::move(library)) {
  load("cuGetErrorName", error_name_);
  load("cuGetErrorString", error_string_);
}

std::string DriverLibrary::explain(const char* function, cu::Result result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (error_name_ != nullptr) (void)error_name_(result, &name);
  if (error_string_ != nullptr) (void)error_string_(result, &text);
  return std::string(function) + " failed with error " + std::to_string(result) +
         (name == nullptr ? "" : " (" + std::string(name) + ")") +
         (text == nullptr ? "" : ": " + std::string(text));
}

void DriverLibrary::raise(const char* function, cu::Result result,
                          const std::string& detail) const {
  std::string message = explain(function, result);
  if (!detail.empty()) message += "; " + detail;
  throw Error(ErrorCode::device, "driver", message);
}

const DriverTable& find_driver() {
  // Leaked: kernels may be launched until the process's last moment.
  static const DriverTable* const table = [] {
    const std::string named = environment("BLOCKSCALE_LIBCUDA");
    return new DriverTable(DynamicLibrary(named.empty() ? kDriverName : named));
  }();
  return *table;
}

void raise_no_gpu(const std::string& why) {
  throw Error(ErrorCode::not_found, {}, "no GPU: " + why);
}

void initialise(const DriverTable& table) {
  const cu::Result result = table.init.status(0);
  if (result == cu::kNoDevice) raise_no_gpu(table.explain(table.init.name(), result));
  if (result != cu::kSuccess) table.raise(table.init.name(), result);
}

void require_usable(const DriverTable& table) {
  const DynamicLibrary& library = table.library();
  if (library.is_missing()) {
    raise_no_gpu("the NVIDIA driver is not installed here: " + library.problem());
  }
  if (!library.is_open()) {
    throw Error(ErrorCode::device, "driver", "cannot be loaded: " + library.problem());
  }
  if (!table.missing().empty()) {
    throw Error(ErrorCode::unsupported, library.path().string(),
                "the NVIDIA driver is too old: it has no " + table.missing().front() +
                    "; kernels need one for CUDA 13");
  }
  initialise(table);
}

const DriverTable& driver() {
  static std::atomic<const DriverTable*> usable = nullptr;
  if (const DriverTable* const table = usable.load(std::memory_order_acquire)) return *table;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const DriverTable& table = find_driver();
  require_usable(table);
  usable.store(&table, std::memory_order_release);
  return table;
}

bool is_capturing(void* stream) {
  auto status = cu::CaptureStatus::none;
  const cu::Result asked =
      driver().stream_is_capturing.status(static_cast<cu::Stream>(stream), &status);
  return asked != cu::kSuccess || status != cu::CaptureStatus::none;
}

}  // namespace blockscale::runtime
