// Products on CUDA devices: arguments -> plan -> launch.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/common/cuda/call.h"
#include "ops/common/cuda/kept_plans.h"
#include "ops/common/regions.h"
#include "ops/gemm/call_memory.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/plan.h"
#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/cuda/transform.h"
#include "ops/gemm/cuda/trials.h"
#include "ops/gemm/cuda/tuning.h"
#include "ops/gemm/validate.h"
#include "ops/quantize/cuda/kernel_sets.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/tensor_map.h"
#include "runtime/kernels/kernel.h"

namespace blockscale {

/// All that a product reads and writes: for check_workspace.
static std::vector<Region> regions_of(const GemmArguments& x) {
  std::vector<Region> regions;
  gemm_detail::for_each_memory(x, [&](const char* argument, auto, const void*, const auto& lines) {
    regions.push_back({argument, lines()});
  });
  return regions;
}

namespace gemm_detail {

runtime::KernelSet& kernels() {
  static auto& set = *new runtime::KernelSet(fp8_gemm_kernel_specs());
  return set;
}

runtime::KernelSet& fp4_kernels() {
  static auto& set = *new runtime::KernelSet(fp4_gemm_kernel_specs());
  return set;
}

runtime::KernelSet& fp4_tiles_kernels() {
  static auto& set = *new runtime::KernelSet(fp4_tiles_kernel_specs());
  return set;
}

runtime::KernelSet& block_scaled_kernels() {
  static auto& set = *new runtime::KernelSet(block_scaled_kernel_specs());
  return set;
}

runtime::KernelSet& plain_kernels() {
  static auto& set = *new runtime::KernelSet(plain_gemm_kernel_specs());
  return set;
}

namespace {

cuda::CallDevice device_of_call(const GemmArguments& x, const cuda::Execution& execution) {
  cuda::CallDevice device(execution);
  for_each_memory(x, [&](const char* argument, Access, const void* pointer, const auto&) {
    device.add(argument, pointer);
  });
  return device;
}

const cuda::Chip& chip_of_call(const GemmArguments& x, const cuda::CallDevice& device,
                               const cuda::Execution& execution) {
  return cuda::chip_of_call(device, plain_kernels(), execution,
                            [&](const cuda::Chip& chip, const auto& visit) {
                              for_each_trial(plan_product(x, chip), visit);
                            });
}

void launch_plan(const Fp8GemmPlan& plan, const cuda::Execution& execution) {
  for (const GemmStep& step : plan.steps) {
    const runtime::Kernel& kernel = kernels().get(step.kernel, plan.architecture);
    const Fp8GemmParams* const tiles = step.of<Fp8GemmParams>();
    cuda::Execution early = execution;
    early.overlap = execution.overlap || (tiles != nullptr && tiles->is_beside);
    std::visit([&](const auto& params) { cuda::launch(kernel, step.shape, early, params); },
               step.params);
  }
}

void launch_plan(const TransformPlan& plan, const cuda::Execution& execution) {
  cuda::launch(kernels().get(kTransformKernel, plan.architecture), plan.shape, execution,
               plan.params);
}

void launch_plan(const Fp4GemmPlan& plan, const cuda::Execution& execution) {
  const runtime::Kernel& kernel =
      fp4_kernels().get(static_cast<std::size_t>(plan.kernel), plan.architecture);
  cuda::launch(kernel, plan.shape, execution, plan.params);
}

void launch_step(const PlainGemmStep& step, int architecture, const cuda::Execution& execution) {
  const runtime::Kernel& kernel =
      plain_kernels().get(static_cast<std::size_t>(step.kernel), architecture);
  cuda::launch(kernel, step.shape, execution, step.params);
}

void launch_plan(const Fp4TilesPlan& plan, const cuda::Execution& execution) {
  for (const auto* const conversion : {&plan.conversion, &plan.b_conversion}) {
    if (*conversion) quantize_detail::launch_plan(**conversion, execution);
  }
  const runtime::Kernel& kernel =
      fp4_tiles_kernels().get(static_cast<std::size_t>(plan.kernel), plan.architecture);
  cuda::launch(kernel, plan.shape, execution, plan.params);
  if (plan.fallback) launch_step(*plan.fallback, plan.architecture, execution);
}

void launch_plan(const BlockScaledPlan& plan, const cuda::Execution& execution) {
  const runtime::Kernel& kernel =
      block_scaled_kernels().get(static_cast<std::size_t>(plan.kernel), plan.architecture);
  cuda::launch(kernel, plan.shape, execution, plan.params);
}

void launch_plan(const PlainGemmPlan& plan, const cuda::Execution& execution) {
  if (plan.product) launch_step(*plan.product, plan.architecture, execution);
}

/// Sets the tensor maps of a launch's parameters.
template <class Params>
void find_tensor_maps(const TensorMapDescriptions& maps, Params& params) {
  runtime::TensorMapCache& cache = runtime::TensorMapCache::instance();
  const auto encode = [&](const TensorMapDescription& map) { return cache.get(map); };
  resolve_tensor_maps(maps, encode, params);
}

/// Sets the tensor maps of a plan that has any.
void prepare(Fp8GemmPlan& plan) {
  for (GemmStep& step : plan.steps) gemm_detail::find_tensor_maps(step);
}
void prepare(Fp4TilesPlan& plan) {
  find_tensor_maps(plan.maps, plan.params);
}
void prepare(BlockScaledPlan& plan) {
  find_tensor_maps(plan.maps, plan.params);
}
void prepare(const Fp4GemmPlan&) {}
void prepare(const PlainGemmPlan&) {}

/// Launches plan_in(workspace) of validated arguments, which is `plan` in the execution's, in that
/// one or in one that is allocated. Returns what it launched.
template <class Plan, class PlanIn>
Plan launch_in_workspace(const Plan& plan, const GemmArguments& x, cuda::CallDevice& device,
                         const cuda::Execution& execution, const PlanIn& plan_in) {
  const cuda::Execution with = cuda::with_workspace(execution, plan.workspace_bytes);
  Plan launched = with.workspace == execution.workspace ? plan : plan_in(with.workspace);
  cuda::check_workspace(with, launched.workspace_bytes, device, x);
  const cuda::DeviceScope scope(device.ordinal());
  prepare(launched);
  launch_plan(launched, with);
  return launched;
}

/// Plans a product of validated arguments by plain kernels, and launches it.
void plan_and_launch_plainly(const GemmArguments& x, const std::optional<PlainTile>& tile,
                             cuda::CallDevice& device, const cuda::Execution& execution) {
  const cuda::Chip& chip = device.chip(plain_kernels());
  const auto plan_in = [&](void*) { return plan_plain_gemm(x, chip, tile); };
  launch_in_workspace(plan_in(nullptr), x, device, execution, plan_in);
}

/// What plans of products that need no workspace are a function of.
class ProductKey : public cuda::CallKey<96> {
 public:
  explicit ProductKey(const GemmArguments& x) {
    const auto& [a, b, d, alpha, alpha_factor, beta, c, bias, bias_dtype, gate, gate_dtype,
                 transform, batch_invariant, fast_accumulation, quantized] = x;
    if (quantized) throw std::logic_error("plans of products that quantize are not kept");
    add(a, b, MatrixView(d), alpha, alpha_factor, beta, c, bias, bias_dtype, gate, gate_dtype,
        transform, batch_invariant, fast_accumulation);
  }
};

/// What a call launched, with tensor maps.
struct LaunchedPlan {
  int device = -1;
  std::variant<Fp8GemmPlan, Fp4GemmPlan, Fp4TilesPlan, BlockScaledPlan> plan;
};

using KeptProducts = cuda::KeptPlans<512, ProductKey, LaunchedPlan>;  // of 4 KB each

/// Launches what a call with these arguments did before; false if there was none.
bool launch_kept(const LaunchedPlan* kept, const GemmArguments& arguments,
                 const cuda::Execution& execution) {
  if (kept == nullptr) return false;
  // The memory behind an address may have become another device's, or the host's.
  const cuda::CallDevice device = device_of_call(arguments, execution);
  if (device.ordinal() != kept->device) return false;
  const cuda::DeviceScope scope(device.ordinal());
  std::visit([&](const auto& plan) { launch_plan(plan, execution); }, kept->plan);
  return true;
}

/// Launches what is behind a product.
void launch_behind(const ProductPlan& plan, const cuda::Execution& execution) {
  if (plan.transform && plan.transform->is_needed()) launch_plan(*plan.transform, execution);
  if (plan.quantization) quantize_detail::launch_steps(*plan.quantization, execution);
}

/// A product of validated arguments whose D is in the workspace first: multiply(arguments of that,
/// execution), then what becomes of its numbers.
template <class Multiply>
void multiply_to_workspace(const GemmArguments& x, const cuda::Chip& chip, cuda::CallDevice& device,
                           const cuda::Execution& execution, const Multiply& multiply) {
  ProductPlan plan = plan_product(x, chip, execution.workspace);
  const cuda::Execution with = cuda::with_workspace(execution, plan.workspace_bytes);
  if (with.workspace != execution.workspace) plan = plan_product(x, chip, with.workspace);
  cuda::check_workspace(with, plan.workspace_bytes, device, x);
  auto* const numbers = static_cast<float*>(with.workspace);
  cuda::Execution rest = with;
  rest.workspace = byte_at(with.workspace, transform_workspace_bytes(x));
  rest.workspace_bytes -= transform_workspace_bytes(x);
  multiply(before_transform(x, numbers), rest);
  const cuda::DeviceScope scope(device.ordinal());
  launch_behind(plan, with);
}

/// Plans a product by choose(validated arguments, chip), or by itself if that is none, and
/// launches it. Nothing where D has no element, where a plain kernel serves, and where launches are
/// behind the product.
template <class Choose>
std::optional<LaunchedPlan> plan_and_launch(const GemmArguments& arguments, const Choose& choose,
                                            const cuda::Execution& execution) {
  const GemmArguments x = validated(arguments, {});
  cuda::CallDevice device = device_of_call(x, execution);
  if (!device.is_known()) return std::nullopt;
  const cuda::Chip& chip = chip_of_call(x, device, execution);
  if (is_in_workspace(x, chip)) {
    multiply_to_workspace(x, chip, device, execution, [&](const auto& product, const auto& rest) {
      (void)plan_and_launch(product, choose, rest);
    });
    return std::nullopt;
  }
  if (!has_fp8_kernel(x.a.recipe, x.b.recipe, chip)) {
    if (const auto few_rows = plan_fp4_gemm(x, chip)) {
      const cuda::DeviceScope scope(device.ordinal());
      launch_plan(*few_rows, execution);
      return LaunchedPlan{device.ordinal(), *few_rows};
    }
    if (const auto tiles = plan_fp4_tiles(x, chip, execution.workspace)) {
      const auto plan_in = [&](void* workspace) { return *plan_fp4_tiles(x, chip, workspace); };
      return LaunchedPlan{device.ordinal(),
                          launch_in_workspace(*tiles, x, device, execution, plan_in)};
    }
    if (const auto block_scaled = plan_block_scaled(x, chip)) {
      const auto plan_in = [&](void*) { return *block_scaled; };
      return LaunchedPlan{device.ordinal(),
                          launch_in_workspace(*block_scaled, x, device, execution, plan_in)};
    }
    plan_and_launch_plainly(x, std::nullopt, device, execution);
    return std::nullopt;
  }
  const std::optional<Fp8LaunchConfig> config = choose(x, chip);
  const auto plan_in = [&](void* workspace) { return plan_fp8_gemm(x, chip, config, workspace); };
  return LaunchedPlan{device.ordinal(), launch_in_workspace(plan_in(execution.workspace), x, device,
                                                            execution, plan_in)};
}

/// Launches plan_of(validated arguments, chip, workspace) of FP4 weights and such a number of rows,
/// or throws.
template <class PlanOf>
void launch_by(const GemmArguments& arguments, const cuda::Execution& execution, const char* rows,
               const PlanOf& plan_of) {
  const GemmArguments x = validated(arguments, {});
  cuda::CallDevice device = device_of_call(x, execution);
  if (!device.is_known()) return;
  const cuda::Chip& chip = device.chip(plain_kernels());
  const auto plan = plan_of(x, chip, execution.workspace);
  if (!plan) {
    throw Error(ErrorCode::unsupported, "b.recipe",
                std::string("has no kernel of ") + rows + " rows for this product");
  }
  launch_in_workspace(*plan, x, device, execution,
                      [&](void* workspace) { return *plan_of(x, chip, workspace); });
}

/// describe_gemm of validated arguments.
std::string text_of_plan(const GemmArguments& x, const cuda::Chip& chip) {
  if (is_in_workspace(x, chip)) {
    return text_of_plan(before_transform(x, nullptr), chip) + plan_product(x, chip).str_behind();
  }
  if (!has_fp8_kernel(x.a.recipe, x.b.recipe, chip)) return plan_product(x, chip).str();
  const Tuning& tuning = Tuning::of_user();
  const auto tuned = tuning.find(chip, size_of(x));
  std::string text = plan_fp8_gemm(x, chip, tuned).str();
  if (tuned) text += "tuned: " + tuning.path().string() + "\n";
  return text;
}

std::optional<Fp8LaunchConfig> tuned_config(const GemmArguments& x, const cuda::Chip& chip) {
  return Tuning::of_user().find(chip, size_of(x));
}

}  // namespace

void find_tensor_maps(GemmStep& step) {
  std::visit([&](auto& params) { find_tensor_maps(step.maps, params); }, step.params);
}

void find_tensor_maps(ProductPlan& plan) {
  std::visit([](auto& product) { prepare(product); }, plan.product);
}

void launch_steps(const ProductPlan& plan, const cuda::Execution& execution) {
  std::visit([&](const auto& product) { launch_plan(product, execution); }, plan.product);
  launch_behind(plan, execution);
}

void launch_gemm(const GemmArguments& arguments, const std::optional<Fp8LaunchConfig>& config,
                 const cuda::Execution& execution) {
  (void)plan_and_launch(arguments, [&](const auto&...) { return config; }, execution);
}

void launch_fp4_gemm(const GemmArguments& arguments, const Fp4Division& division,
                     const cuda::Execution& execution) {
  launch_by(arguments, execution, "few", [&](const auto& x, const auto& chip, void*) {
    return plan_fp4_gemm(x, chip, division);
  });
}

void launch_fp4_gemm(const GemmArguments& arguments, const Fp4TilesDivision& division,
                     const cuda::Execution& execution) {
  launch_by(arguments, execution, "many", [&](const auto& x, const auto& chip, void* workspace) {
    return plan_fp4_tiles(x, chip, workspace, division);
  });
}

void launch_plain_gemm(const GemmArguments& arguments, const std::optional<PlainTile>& tile,
                       const cuda::Execution& execution) {
  const GemmArguments x = validated(arguments, {});
  cuda::CallDevice device = device_of_call(x, execution);
  if (!device.is_known()) return;
  if (is_transformed(x)) {
    const cuda::Chip& chip = device.chip(plain_kernels());
    multiply_to_workspace(x, chip, device, execution, [&](const auto& product, const auto& rest) {
      launch_plain_gemm(product, tile, rest);
    });
  } else {
    plan_and_launch_plainly(x, tile, device, execution);
  }
}

}  // namespace gemm_detail

namespace cuda {

std::int64_t gemm_workspace_bytes(const GemmArguments& arguments) {
  const GemmArguments x = gemm_detail::validated(arguments, {});
  return workspace_bytes_on(default_chip(), [&](const Chip& chip) {
    return gemm_detail::plan_product(x, chip).workspace_bytes;
  });
}

void gemm(const GemmArguments& arguments, const Execution& execution) {
  using namespace gemm_detail;
  if (arguments.quantized) {
    (void)plan_and_launch(arguments, tuned_config, execution);
    return;
  }
  const ProductKey key(arguments);
  KeptProducts& plans = KeptProducts::of_thread();
  if (launch_kept(plans.find(key), arguments, execution)) return;
  const auto launched = plan_and_launch(arguments, tuned_config, execution);
  const auto bytes_of = [](const auto& plan) { return plan.workspace_bytes; };
  if (launched && std::visit(bytes_of, launched->plan) == 0) plans.keep(key, *launched);
}

std::string describe_gemm(const GemmArguments& arguments, const Chip& chip) {
  const Chip& of = checked(chip, gemm_detail::plain_kernels());
  return with_proof(gemm_detail::text_of_plan(gemm_detail::validated(arguments, {}), of), of);
}

}  // namespace cuda
}  // namespace blockscale
