#include "runtime/kernels/kernel.h"

#include <algorithm>
#include <array>
#include <utility>

#include "blockscale/error.h"
#include "runtime/cuda/device.h"

namespace blockscale::runtime {
namespace {

constexpr std::uint32_t kDefaultSharedBytes = 48 << 10;  // without opt-in
constexpr std::uint64_t kPortableClusterBlocks = 8;

std::string text(const Dim3& shape) {
  return std::to_string(shape.x) + " x " + std::to_string(shape.y) + " x " +
         std::to_string(shape.z);
}

std::string text(const LaunchShape& shape) {
  return "grid " + text(shape.grid) + ", block " + text(shape.block) + ", cluster " +
         text(shape.cluster) + ", " + std::to_string(shape.dynamic_shared_bytes) +
         " bytes of dynamic shared memory";
}

/// Why code may not load: what a reader of the driver's error asks first.
std::string loading_detail(const DriverTable& table, const KernelSpec& spec,
                           const KernelImage& image) {
  int version = 0;
  (void)table.driver_version.status(&version);
  return "kernel " + spec.name + " for " + spec.architecture + " from " +
         (image.pack.empty() ? "NVRTC" : image.pack.string()) + "; the driver is for CUDA " +
         std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

[[noreturn]] void refuse(const Kernel& kernel, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, "kernel " + kernel.spec().name, message);
}

void check_launch(const Kernel& kernel, const LaunchShape& shape, std::size_t bytes) {
  const KernelSpec& spec = kernel.spec();
  if (bytes != spec.parameter_bytes) [[unlikely]] {
    refuse(kernel, "its parameters are " + std::to_string(bytes) + " bytes; " +
                       std::to_string(spec.parameter_bytes) + " are needed");
  }
  const std::uint64_t threads = product(shape.block);
  const auto most = static_cast<std::uint64_t>(spec.threads);
  if (threads != most && (!spec.fewer_threads || threads > most || threads == 0)) [[unlikely]] {
    refuse(kernel, "a block is launched with " + std::to_string(threads) +
                       " threads; it is compiled for " + (spec.fewer_threads ? "at most " : "") +
                       std::to_string(most));
  }
  if (product(shape.grid) == 0 || product(shape.cluster) == 0 ||
      shape.grid.x % shape.cluster.x != 0 || shape.grid.y % shape.cluster.y != 0 ||
      shape.grid.z % shape.cluster.z != 0) [[unlikely]] {
    refuse(kernel, "its grid must be a positive multiple of its cluster: " + text(shape));
  }
}

/// Devices from 64 on have no bit: what is to be set once a device is set at each launch there.
bool is_set(const std::atomic<std::uint64_t>& bits, cu::Device device) {
  return device < 64 && (bits.load(std::memory_order_relaxed) >> device & 1) != 0;
}

void set(std::atomic<std::uint64_t>& bits, cu::Device device) {
  if (device < 64) bits.fetch_or(std::uint64_t{1} << device, std::memory_order_relaxed);
}

}  // namespace

Kernel::Kernel(KernelSpec spec, KernelStore& store) : spec_(std::move(spec)) {
  const DriverTable& table = driver();
  const KernelImage image = store.image(spec_);
  resources_ = image.resources;
  const RelaxedCapture relaxed(table);
  cu::Library library = nullptr;
  const cu::Result loaded = table.library_load.status(&library, image.cubin.data(), nullptr,
                                                      nullptr, 0, nullptr, nullptr, 0);
  if (loaded != cu::kSuccess) {
    table.raise(table.library_load.name(), loaded, loading_detail(table, spec_, image));
  }
  const cu::Result found = table.library_kernel.status(&handle_, library, spec_.name.c_str());
  if (found != cu::kSuccess) {
    (void)table.library_unload.status(library);  // else each new attempt would keep one more
    table.raise(table.library_kernel.name(), found, loading_detail(table, spec_, image));
  }
}

void Kernel::load_code() const {
  const DriverTable& table = driver();
  const RelaxedCapture relaxed(table);
  cu::Function function = nullptr;
  table.kernel_function(&function, handle_);
  table.function_load(function);
}

void Kernel::allow(const LaunchShape& shape) const {
  const bool shared =
      shape.dynamic_shared_bytes + resources_.static_shared_bytes > kDefaultSharedBytes;
  const bool cluster = product(shape.cluster) > kPortableClusterBlocks;
  if (!shared && !cluster) [[likely]]
    return;
  const cu::Device device = current_device_handle();
  if (shared && !is_set(large_shared_memory_, device)) {
    const auto limit = device_list().with_handle(device).shared_bytes;
    driver().kernel_set_attribute(cu::FunctionAttribute::max_dynamic_shared_bytes,
                                  static_cast<int>(limit - resources_.static_shared_bytes), handle_,
                                  device);
    set(large_shared_memory_, device);
  }
  if (cluster && !is_set(large_clusters_, device)) {
    driver().kernel_set_attribute(cu::FunctionAttribute::non_portable_cluster_size, 1, handle_,
                                  device);
    set(large_clusters_, device);
  }
}

KernelSet::KernelSet(std::vector<KernelSpec> specs, KernelStore& store)
    : specs_(std::move(specs)), store_(store), slots_(std::make_unique<Slot[]>(specs_.size())) {
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    architectures_.push_back(Architecture::of(specs_[i].architecture));
    if (i == 0 || specs_[i].name != specs_[i - 1].name) first_.push_back(i);
  }
  first_.push_back(specs_.size());
}

std::size_t KernelSet::find(std::size_t index, int compute_capability) const {
  if (index >= size()) [[unlikely]] {
    throw Error(ErrorCode::invalid_argument, "kernel",
                "has index " + std::to_string(index) + "; there are " + std::to_string(size()));
  }
  for (std::size_t i = first_[index]; i < first_[index + 1]; ++i) {
    if (architectures_[i].runs_on(compute_capability)) return i;
  }
  return specs_.size();
}

bool KernelSet::has(std::size_t index, int compute_capability) const {
  return find(index, compute_capability) != specs_.size();
}

bool KernelSet::has_any(int compute_capability) const {
  return std::any_of(architectures_.begin(), architectures_.end(),
                     [=](const Architecture& a) { return a.runs_on(compute_capability); });
}

std::string KernelSet::chips() const {
  std::vector<std::string> names;
  for (const Architecture& architecture : architectures_) {
    const std::string name = architecture.chips();
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return text;
}

std::size_t KernelSet::find_or_throw(std::size_t index, int compute_capability) const {
  const std::size_t found = find(index, compute_capability);
  if (found == specs_.size()) [[unlikely]] {
    throw Error(
        ErrorCode::unsupported, "kernel " + specs_[first_[index]].name,
        "is not compiled for compute capability " + compute_capability_text(compute_capability));
  }
  return found;
}

const KernelSpec& KernelSet::spec(std::size_t index, int compute_capability) const {
  return specs_[find_or_throw(index, compute_capability)];
}

const Kernel& KernelSet::get(std::size_t index, int compute_capability) {
  const std::size_t found = find_or_throw(index, compute_capability);
  Slot& slot = slots_[found];
  if (const Kernel* const kernel = slot.kernel.load(std::memory_order_acquire)) return *kernel;
  const std::lock_guard lock(slot.loading);
  if (const Kernel* const kernel = slot.kernel.load(std::memory_order_acquire)) return *kernel;
  slot.owned = std::make_unique<const Kernel>(specs_[found], store_);
  slot.kernel.store(slot.owned.get(), std::memory_order_release);
  return *slot.owned;
}

int KernelSet::load_all(int compute_capability) {
  int count = 0;
  for (std::size_t i = 0; i < size(); ++i) {
    if (!has(i, compute_capability)) continue;
    get(i, compute_capability).load_code();
    ++count;
  }
  return count;
}

void launch(const Kernel& kernel, const LaunchShape& shape, void* stream, const void* parameters,
            std::size_t bytes) {
  check_launch(kernel, shape, bytes);
  kernel.allow(shape);
  std::array<cu::LaunchAttribute, 2> attributes;
  std::uint32_t count = 0;
  if (shape.cluster != Dim3{}) {
    attributes[count].id = cu::LaunchAttributeId::cluster_dimension;
    attributes[count].cluster[0] = shape.cluster.x;
    attributes[count].cluster[1] = shape.cluster.y;
    attributes[count].cluster[2] = shape.cluster.z;
    ++count;
  }
  if (shape.programmatic_dependent_launch) {
    attributes[count].id = cu::LaunchAttributeId::programmatic_stream_serialization;
    attributes[count].programmatic_stream_serialization_allowed = 1;
    ++count;
  }
  const cu::LaunchConfig config{shape.grid.x,
                                shape.grid.y,
                                shape.grid.z,
                                shape.block.x,
                                shape.block.y,
                                shape.block.z,
                                shape.dynamic_shared_bytes,
                                static_cast<cu::Stream>(stream),
                                attributes.data(),
                                count};
  void* arguments[] = {const_cast<void*>(parameters)};
  const DriverTable& table = driver();
  const cu::Result result = table.launch.status(
      &config, reinterpret_cast<cu::Function>(kernel.handle()), arguments, nullptr);
  if (result != cu::kSuccess) [[unlikely]] {
    table.raise(
        table.launch.name(), result,
        "kernel " + kernel.spec().name + " for " + kernel.spec().architecture + ", " + text(shape));
  }
}

}  // namespace blockscale::runtime
