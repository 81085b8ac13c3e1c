// benchmark_gemm on CUDA devices, and arguments that describe_gemm takes.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "ops/common/cuda/call.h"
#include "ops/common/overlap.h"
#include "ops/gemm/validate.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/measure.h"

namespace blockscale {
namespace {

/// Memory that does not exist, apart from any other: nobody reads it.
void* nowhere(std::uintptr_t place) {
  return reinterpret_cast<void*>(place << 40);
}

ScaledTensorView imagined(Recipe recipe, std::int64_t rows, std::int64_t k, std::int64_t batch,
                          std::uintptr_t place) {
  ScaledTensorView view;
  view.recipe = recipe;
  view.rows = rows;
  view.k = k;
  view.batch = batch;
  view.values = nowhere(place);
  if (is_plain(recipe)) return view;
  view.scales = nowhere(place + 1);
  if (recipe_traits(recipe).tensor_scale) {
    view.tensor_scale = static_cast<const float*>(nowhere(place + 2));
  }
  return view;
}

}  // namespace

GemmArguments imagined_gemm(std::int64_t m, std::int64_t n, std::int64_t k, Recipe a, Recipe b,
                            Format d, std::int64_t batch) {
  GemmArguments arguments;
  arguments.a = imagined(a, m, k, batch, 1);
  arguments.b = imagined(b, n, k, batch, 4);
  arguments.d = {nowhere(7), d, m, n};
  arguments.d.batch = batch;
  return arguments;
}

namespace cuda {
namespace {

using runtime::DeviceBuffer;

/// From the first byte to behind the last one.
std::size_t extent(const MemoryLines& x) {
  if (x.bytes == 0 || x.lines == 0 || x.batch == 0) return 0;
  return static_cast<std::size_t>((x.batch - 1) * x.batch_stride + (x.lines - 1) * x.line_stride +
                                  x.bytes);
}

/// A product's operands, copied from the host to the current device.
class DeviceProduct {
 public:
  /// `host` is validated.
  explicit DeviceProduct(const GemmArguments& host) : x_(host) {
    copy(x_.a);
    copy(x_.b);
    copy(x_.d.data, lines_of(MatrixView(host.d)));
    if (host.beta != 0) copy(x_.c.data, lines_of(host.c));
    if (host.bias != nullptr) {
      copy(x_.bias, line_of(host.bias, host.d.columns * format_traits(host.bias_dtype).bits / 8));
    }
    if (host.alpha_factor != nullptr) {
      copy(x_.alpha_factor, line_of(host.alpha_factor, sizeof(float)));
    }
  }

  const GemmArguments& arguments() const { return x_; }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const DeviceBuffer& buffer : buffers_) sum += buffer.bytes();
    return sum;
  }
  void copy_result_to(const GemmArguments& host) const {
    buffers_[d_].copy_to_host(host.d.data, buffers_[d_].bytes());
  }

 private:
  void copy(ScaledTensorView& view) {
    const ScaledTensorView host = view;
    copy(view.values, values_of(host));
    copy(view.scales, scales_of(host));
    if (host.tensor_scale != nullptr) copy(view.tensor_scale, tensor_scales_of(host));
  }

  /// Copies what `pointer` points to, and lets it point there.
  template <class T>
  void copy(T*& pointer, const MemoryLines& lines) {
    DeviceBuffer buffer(extent(lines));
    buffer.copy_from_host(pointer, buffer.bytes());
    if (static_cast<const void*>(pointer) == x_.d.data) d_ = buffers_.size();
    pointer = reinterpret_cast<T*>(buffer.data());
    buffers_.push_back(std::move(buffer));
  }

  GemmArguments x_;
  std::vector<DeviceBuffer> buffers_;
  std::size_t d_ = 0;
};

}  // namespace

double benchmark_gemm(const GemmArguments& arguments, int repeats) {
  if (repeats < 1) {
    throw Error(ErrorCode::invalid_argument, "repeats",
                "is " + std::to_string(repeats) + ", must be at least 1");
  }
  const GemmArguments host = gemm_detail::validated(arguments, {});
  const DeviceTraits device = current_device();
  require_kernels_for(device, "device");
  (void)describe_gemm(host, device.multiprocessors);  // what there is no kernel for
  constexpr std::size_t kMostParts = 64;
  std::vector<DeviceProduct> parts;
  parts.emplace_back(host);
  const auto cold = static_cast<std::size_t>(3 * device.l2_bytes);
  const std::size_t one = std::max<std::size_t>(1, parts.front().bytes());
  const std::size_t count = std::clamp<std::size_t>(cold / one + 1, 1, kMostParts);
  while (parts.size() < count) parts.emplace_back(host);

  const runtime::DeviceStream stream;
  const runtime::TimedWork work = {
      [&](void* s, int i) { gemm(parts[static_cast<std::size_t>(i)].arguments(), {s}); },
      static_cast<int>(count)};
  gemm(parts.front().arguments(), {stream.handle()});  // loads the kernel, which a graph may not
  const double seconds = runtime::median_seconds(stream, {work}, repeats).front();
  stream.wait();
  parts.front().copy_result_to(host);
  return seconds;
}

}  // namespace cuda
}  // namespace blockscale
