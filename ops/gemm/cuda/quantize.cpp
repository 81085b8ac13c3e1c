#include "ops/gemm/cuda/quantize.h"

#include <cstddef>
#include <utility>
#include <variant>

#include "ops/gemm/cuda/problem.h"
#include "ops/gemm/validate.h"
#include "ops/quantize/cuda/params.h"

namespace blockscale::gemm_detail {
namespace {

Activation activation_of(const quantize_detail::FusedInput& input) {
  if (input.is_clamped) return Activation::clamped_swiglu;
  if (input.transform == InputTransform::swiglu) return Activation::swiglu;
  return is_gelu(input.transform) ? Activation::gelu : Activation::none;
}

ScaleRule rule_of(Recipe recipe) {
  switch (recipe_traits(recipe).family) {
    case Family::mx: return ScaleRule::mx;
    case Family::nvfp4: return ScaleRule::nvfp4;
    default: return ScaleRule::fp8;
  }
}

}  // namespace

bool fits_epilogue(const QuantizedResult& quantized) {
  return recipe_traits(quantized.out.recipe).block_k != 0 &&
         !std::holds_alternative<Silu>(quantized.options.input);
}

QuantizingEpilogue quantizing_epilogue(const GemmArguments& x) {
  QuantizingEpilogue e;
  if (!x.quantized) return e;
  const quantize_detail::QuantizeArguments a = quantization_of(x);
  const QuantizeParams p = quantize_detail::quantize_params(a, x.quantized->options);
  e.activation = activation_of(a.input);
  e.swiglu = a.input.swiglu;
  e.rule = rule_of(a.out.recipe);
  e.gelu = p.fused.gelu;
  e.columns = p.k;
  e.values = p.values;
  e.value_row_stride = p.value_row_stride;
  e.value_batch_stride = p.value_batch_stride;
  const int codes = 128 / format_traits(epilogue_element(e.rule)).bits;  // in 16 bytes
  e.vectors =
      quantize_detail::has_value_vectors(p, 16) && p.k % static_cast<std::uint32_t>(codes) == 0;
  e.scales = p.scales;
  e.scale_steps = ScaleSteps::of(p.scales.layout, p.scales.leading_stride);
  const ScaleGrid blocks = scale_grid(a.out.recipe, a.out.rows, a.out.k);
  e.has_padding = p.scales.rows != blocks.rows || p.scales.columns != blocks.columns;
  e.options = p.scale_options;
  e.tensor_scale = p.tensor_scale;
  e.tensor_scale_stride = p.tensor_scale_stride;
  e.is_multiplier = p.tensor_source == TensorScaleSource::multiplier;
  return e;
}

TileRuns tile_runs(const GemmArguments& x) {
  const quantize_detail::FusedInput input = quantization_of(x).input;
  TileRuns runs;
  if (input.transform != InputTransform::swiglu) return runs;
  if (input.gate_group == 1) {  // pairs
    runs.first[1] = 1;
    runs.step = 2;
    runs.have_maps = true;
  } else if (input.gate_group != kRunColumns) {  // two halves
    runs.tile_rows = kRunColumns;
    runs.first[1] = static_cast<std::uint32_t>(input.gate_group);
    runs.have_maps = true;
  }
  if (input.gate_order == GateOrder::up_first) std::swap(runs.first[0], runs.first[1]);
  return runs;
}

std::int64_t quantized_columns(const GemmArguments& x) {
  const bool gated = quantization_of(x).input.transform == InputTransform::swiglu;
  return (gated ? 2 : 1) * kQuantizedColumns;
}

bool runs_fit_blocks(const TileRuns& runs) {
  return runs.step == 2 || (runs.first[0] + runs.first[1]) % kRunColumns == 0;
}

ScaledTensorView rows_of_run(const ScaledTensorView& b, const TileRuns& runs, int run) {
  ScaledTensorView rows = b;
  if (!runs.have_maps) return rows;
  rows.values = static_cast<const std::byte*>(b.values) + runs.first[run] * b.value_row_stride;
  rows.rows = b.rows / 2;
  rows.value_row_stride = b.value_row_stride * runs.step;
  return rows;
}

QuantizationPlan plan_quantization(GemmArguments x, const QuantizedResult& asked,
                                   const cuda::Chip& chip, void* workspace) {
  QuantizedResult& quantized = x.quantized.emplace(asked);
  QuantizationPlan plan;
  if (quantization_of(x).input.is_clamped) {
    GemmArguments transformed = x;
    transformed.quantized.reset();
    transformed.transform = std::exchange(quantized.options.input, Identity{});
    const auto* const numbers = static_cast<const float*>(x.d.data);
    const std::int64_t columns = quantized.out.k;
    x.d.data = workspace;
    x.d.columns = x.d.row_stride = columns;
    x.d.batch_stride = x.d.rows * columns;
    transformed.d = x.d;
    plan.transform = plan_transform(transformed, numbers, chip);
    plan.workspace_bytes = ceil_div(x.d.batch * x.d.batch_stride * 4, 16) * 16;
  }
  plan.quantization = quantize_detail::plan_quantize(quantization_of(x), quantized.options, chip,
                                                     byte_at(workspace, plan.workspace_bytes));
  plan.workspace_bytes += plan.quantization.workspace_bytes;
  return plan;
}

std::string text_of_quantizer(const std::optional<TransformPlan>& transform,
                              const quantize_detail::QuantizePlan& quantization) {
  return (transform ? transform->str() : "D in f32 in the workspace, then ") + quantization.str();
}

}  // namespace blockscale::gemm_detail
