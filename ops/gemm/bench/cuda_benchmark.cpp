// benchmark_gemm and tune_gemm on CUDA devices, and arguments that describe_gemm takes.
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "ops/common/cuda/call.h"
#include "ops/common/cuda/cold_calls.h"
#include "ops/gemm/call_memory.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/tuning.h"
#include "ops/gemm/validate.h"

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

/// `arguments` validated. Throws as cuda::gemm does for arguments that there is no kernel for, and
/// for no repeat.
GemmArguments checked(const GemmArguments& arguments, int repeats) {
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

using ColdProducts = ColdCalls<GemmArguments>;

/// `host` is checked.
ColdProducts cold_products(const GemmArguments& host, int repeats) {
  const auto memory = [](GemmArguments& x, const auto& visit) {
    gemm_detail::for_each_memory(x, visit);
  };
  return {host, memory, cuda::gemm_workspace_bytes(host), repeats};
}

}  // namespace

double benchmark_gemm(const GemmArguments& arguments, int repeats) {
  const ColdProducts products = cold_products(checked(arguments, repeats), repeats);
  const double seconds = products.seconds({gemm}).front();
  products.copy_results();
  return seconds;
}

GemmTuning tune_gemm(const GemmArguments& arguments, int repeats) {
  using gemm_detail::Fp8LaunchConfig;
  using gemm_detail::Tuning;
  Tuning tuning = Tuning::read(Tuning::user_file());
  const GemmArguments x = checked(arguments, repeats);
  const ColdProducts products = cold_products(x, repeats);
  if (x.d.rows == 0 || x.d.columns == 0 || x.d.batch == 0) {
    throw Error(ErrorCode::invalid_argument, "d", "has no element: there is nothing to tune");
  }
  if (!gemm_detail::has_fp8_kernel(x.a.recipe, x.b.recipe, current_device())) {
    throw Error(ErrorCode::unsupported, "a.recipe",
                std::string("is ") + recipe_traits(x.a.recipe).name + " with b.recipe " +
                    recipe_traits(x.b.recipe).name +
                    ": the kernels that compute this pair here have nothing to tune");
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
