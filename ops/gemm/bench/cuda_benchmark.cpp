// benchmark_gemm and tune_gemm on CUDA devices, and arguments that describe_gemm takes.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "ops/common/cuda/call.h"
#include "ops/gemm/call_memory.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/tuning.h"
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
                            Format d, std::int64_t batch, std::optional<Recipe> to,
                            const QuantizeInput& input) {
  GemmArguments arguments;
  arguments.a = imagined(a, m, k, batch, 1);
  arguments.b = imagined(b, n, k, batch, 4);
  const std::int64_t columns = std::holds_alternative<Swiglu>(input) ? n / 2 : n;
  arguments.d = {nowhere(7), d, m, to ? n : columns};
  arguments.d.batch = batch;
  if (!to) {
    arguments.transform = input;
    return arguments;
  }
  MutableScaledTensorView out;
  out.recipe = *to;
  out.rows = m;
  out.k = columns;
  out.batch = batch;
  out.values = nowhere(8);
  out.scales = nowhere(9);
  QuantizeOptions options;
  options.input = input;
  if (recipe_traits(*to).tensor_scale) {
    out.tensor_scale = static_cast<float*>(nowhere(10));
    options.scale_source = ScaleSource::given;
  }
  arguments.quantized = {out, options};
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
    using gemm_detail::Access;
    gemm_detail::for_each_memory(x_, [&](auto, Access access, auto*& pointer, const auto& lines) {
      if (pointer == nullptr) return;
      if (access == Access::writes) {
        results_.emplace_back(buffers_.size(),
                              const_cast<void*>(static_cast<const void*>(pointer)));
      }
      copy(pointer, lines());
    });
  }

  const GemmArguments& arguments() const { return x_; }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const DeviceBuffer& buffer : buffers_) sum += buffer.bytes();
    return sum;
  }
  /// Copies what the product left back to where it came from.
  void copy_results() const {
    for (const auto& [buffer, host] : results_) {
      buffers_[buffer].copy_to_host(host, buffers_[buffer].bytes());
    }
  }

 private:
  /// Copies what `pointer` points to, and lets it point there.
  template <class T>
  void copy(T*& pointer, const MemoryLines& lines) {
    DeviceBuffer buffer(extent(lines));
    buffer.copy_from_host(pointer, buffer.bytes());
    pointer = reinterpret_cast<T*>(buffer.data());
    buffers_.push_back(std::move(buffer));
  }

  GemmArguments x_;
  std::vector<DeviceBuffer> buffers_;
  std::vector<std::pair<std::size_t, void*>> results_;  // a buffer, and the host's memory
};

/// As many copies of a product as find caches cold, and what times it.
class ColdProducts {
 public:
  /// Throws as cuda::gemm does for arguments that there is no kernel for, and for no repeat.
  ColdProducts(const GemmArguments& arguments, int repeats)
      : host_(checked(arguments, repeats)),
        workspace_bytes_(cuda::gemm_workspace_bytes(host_)),
        workspace_(static_cast<std::size_t>(std::max<std::int64_t>(workspace_bytes_, 1))),
        repeats_(repeats) {
    constexpr std::size_t kMostParts = 64;
    parts_.emplace_back(host_);
    const auto cold = static_cast<std::size_t>(3 * current_device().l2_bytes);
    const std::size_t one = std::max<std::size_t>(1, parts_.front().bytes());
    const std::size_t count = std::clamp<std::size_t>(cold / one + 1, 1, kMostParts);
    while (parts_.size() < count) parts_.emplace_back(host_);
  }

  const GemmArguments& host() const { return host_; }

  /// Medians, in turns, of what each of `launches` does with arguments and an execution.
  using Launch = std::function<void(const GemmArguments&, const Execution&)>;
  std::vector<double> seconds(const std::vector<Launch>& launches) const {
    std::vector<runtime::TimedWork> works;
    for (const Launch& launch : launches) {
      // Loads its kernel: no graph may.
      launch(parts_.front().arguments(), execution(stream_.handle()));
      works.push_back({[this, &launch](void* stream, int i) {
                         launch(parts_[static_cast<std::size_t>(i)].arguments(), execution(stream));
                       },
                       static_cast<int>(parts_.size())});
    }
    const std::vector<double> result = runtime::median_seconds(stream_, works, repeats_);
    stream_.wait();
    return result;
  }
  void copy_results() const { parts_.front().copy_results(); }

 private:
  /// All products share a workspace: they follow one another.
  Execution execution(void* stream) const { return {stream, workspace_.data(), workspace_bytes_}; }

  static GemmArguments checked(const GemmArguments& arguments, int repeats) {
    if (repeats < 1) {
      throw Error(ErrorCode::invalid_argument, "repeats",
                  "is " + std::to_string(repeats) + ", must be at least 1");
    }
    const GemmArguments host = gemm_detail::validated(arguments, {});
    const DeviceTraits& device = current_device();
    require_kernels_for(gemm_detail::plain_kernels(), device, "device");
    (void)describe_gemm(host, device);
    return host;
  }

  GemmArguments host_;
  std::int64_t workspace_bytes_;
  runtime::DeviceBuffer workspace_;
  int repeats_;
  std::vector<DeviceProduct> parts_;
  runtime::DeviceStream stream_;
};

}  // namespace

double benchmark_gemm(const GemmArguments& arguments, int repeats) {
  const ColdProducts products(arguments, repeats);
  const double seconds = products.seconds({gemm}).front();
  products.copy_results();
  return seconds;
}

GemmTuning tune_gemm(const GemmArguments& arguments, int repeats) {
  using gemm_detail::Fp8LaunchConfig;
  using gemm_detail::Tuning;
  Tuning tuning = Tuning::read(Tuning::user_file());
  const ColdProducts products(arguments, repeats);
  const GemmArguments& x = products.host();
  if (x.d.rows == 0 || x.d.columns == 0 || x.d.batch == 0) {
    throw Error(ErrorCode::invalid_argument, "d", "has no element: there is nothing to tune");
  }
  if (!gemm_detail::has_fp8_kernel(x.a.recipe, x.b.recipe, current_device())) {
    throw Error(ErrorCode::unsupported, "a.recipe",
                std::string("is ") + recipe_traits(x.a.recipe).name + " with b.recipe " +
                    recipe_traits(x.b.recipe).name +
                    ": the plain kernels, which compute this pair, have nothing to tune");
  }
  const auto time_choices = [&](const std::vector<Fp8LaunchConfig>& choices) {
    std::vector<ColdProducts::Launch> launches;
    const auto add = [&](const std::optional<Fp8LaunchConfig>& choice) {
      launches.push_back([choice](const GemmArguments& part, const Execution& execution) {
        gemm_detail::launch_gemm(part, choice, execution);
      });
    };
    add(std::nullopt);
    for (const Fp8LaunchConfig& choice : choices) add(choice);
    return products.seconds(launches);
  };
  const gemm_detail::TuningResult result =
      tune(current_device(), gemm_detail::size_of(x), time_choices, tuning);
  tuning.write();
  return {result.tried, result.planned_seconds, result.best_seconds,
          result.kept ? text_of(*result.kept) : "", tuning.path().string()};
}

}  // namespace cuda
}  // namespace blockscale
