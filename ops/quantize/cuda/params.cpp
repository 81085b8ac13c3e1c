#include "ops/quantize/cuda/params.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "core/recipe.h"
#include "ops/quantize/cuda/tiles.h"
#include "ops/quantize/exponent_rounding.h"

namespace blockscale::quantize_detail {
namespace {

/// Whether chunks of whatever is fused start at multiples of 16 bytes where those of x do.
bool operands_have_vectors(const QuantizeArguments& a) {
  const FusedInput& input = a.input;
  switch (input.transform) {
    case InputTransform::swiglu:
      return input.gate_group != a.out.k || is_multiple(a.out.k * format_bytes(a.x.dtype), 16);
    case InputTransform::modulate:
      return device_matrix(input.scale).vectors && device_matrix(input.shift).vectors;
    case InputTransform::rms_norm: return device_matrix(input.weight).vectors;
    default: return true;
  }
}

FusedParams fused_params(const QuantizeArguments& a) {
  const FusedInput& input = a.input;
  FusedParams f;
  if (is_gelu(input.transform)) {
    f.gelu = input.transform == InputTransform::gelu_tanh ? math::kGeluTanh : math::kGeluErf;
  }
  f.gate_order = input.gate_order;
  f.gate_group = input.gate_group;
  if (input.transform == InputTransform::modulate) {
    f.scale = device_matrix(input.scale);
    f.shift = device_matrix(input.shift);
    const std::int64_t rows = a.x.batch * a.x.rows;
    check_count(rows, "rows");
    f.rows_per_group = Divisor(static_cast<std::uint32_t>(
        std::max<std::int64_t>(1, rows / std::max<std::int64_t>(1, input.scale.rows))));
  }
  if (input.transform == InputTransform::rms_norm) {
    f.weight = device_matrix(input.weight);
    f.epsilon = input.epsilon;
    f.reciprocal_k = 1.0f / static_cast<float>(a.out.k);
  }
  return f;
}

/// Where the scales of blocks go.
ScaleMatrix scale_matrix(const MutableScaledTensorView& out) {
  const RecipeTraits& recipe = recipe_traits(out.recipe);
  ScaleMatrix m;
  m.data = static_cast<std::uint8_t*>(out.scales);
  m.layout = out.layout;
  m.bytes = recipe.scale != Format::f32;
  m.leading_stride = out.scale_leading_stride;
  m.batch_stride = out.scale_batch_stride;
  m.column_step = scale_offset(out.layout, 0, 1, out.scale_leading_stride);
  m.pairs = m.bytes && m.column_step == 1 && is_multiple(out.scales, 2) &&
            is_multiple(out.scale_batch_stride, 2) &&
            (is_swizzled(out.layout) || is_multiple(out.scale_leading_stride, 2));
  const ScaleGrid grid = scale_grid(out.recipe, out.rows, out.k);
  const ScaleLayoutTraits& layout = scale_layout_traits(out.layout);
  m.rows = static_cast<std::uint32_t>(ceil_div(grid.rows, layout.tile_rows) * layout.tile_rows);
  m.columns = static_cast<std::uint32_t>(ceil_div(grid.columns, layout.tile_k) * layout.tile_k);
  return m;
}

/// Rows of a block, as far as kernels are concerned. Of a block that a matrix fills by half or less
/// these are fewer, so that little is encoded in vain; its scale is the same.
std::uint32_t rows_of_block(const RecipeTraits& recipe, std::int64_t rows) {
  constexpr std::uint32_t kLeast = 32;
  auto of_block = static_cast<std::uint32_t>(std::max(1, recipe.block_rows));
  while (of_block > kLeast && rows <= of_block / 2) of_block /= 2;
  return of_block;
}

/// How scales follow from amaxes.
ScaleOptions scale_options(const RecipeTraits& recipe, const QuantizeOptions& options) {
  ScaleOptions o;
  o.amax_floor = options.fp8_amax_floor;
  if (recipe.family == Family::mx) {
    o.exponent_rounding = exponent_rounding(recipe.element, options.mx_scale_mode);
  }
  if (recipe.family == Family::fp8) {
    o.fp8_scale = recipe.scale == Format::ue8m0 ? Fp8Scale::ue8m0
                  : recipe.power_of_two         ? Fp8Scale::f32_power_of_two
                                                : Fp8Scale::f32;
  }
  return o;
}

void set_tensor_scale(QuantizeParams& p, const MutableScaledTensorView& out, ScaleSource source) {
  if (!recipe_traits(out.recipe).tensor_scale) return;
  const bool multiplier = out.sense == TensorScaleSense::multiplier;
  p.tensor_scale = out.tensor_scale;
  p.tensor_scale_stride = out.tensor_scale_batch_stride;
  if (source == ScaleSource::given && p.tensor_scale != nullptr) {
    p.tensor_source = multiplier ? TensorScaleSource::multiplier : TensorScaleSource::stored;
  }
}

}  // namespace

QuantizeParams quantize_params(const QuantizeArguments& a, const QuantizeOptions& options) {
  if (options.scale_choice != ScaleChoice::amax) {
    throw Error(ErrorCode::unsupported, "options.scale_choice",
                "is not amax; other scales are searched on the CPU only");
  }
  const MutableScaledTensorView& out = a.out;
  const RecipeTraits& recipe = recipe_traits(out.recipe);
  QuantizeParams p;
  p.x = device_matrix(a.x);
  p.row_index = a.row_index;
  p.x.vectors &= operands_have_vectors(a);
  check_size("out.rows", out.rows);
  check_size("out.k", out.k);
  p.rows = static_cast<std::uint32_t>(out.rows);
  p.k = static_cast<std::uint32_t>(out.k);
  p.fused = fused_params(a);
  p.values = static_cast<std::uint8_t*>(out.values);
  p.value_row_stride = device_stride(out.value_row_stride, out.rows);
  p.value_batch_stride = device_stride(out.value_batch_stride, out.batch);
  p.block_rows = rows_of_block(recipe, out.rows);
  p.scales = scale_matrix(out);
  p.scale_options = scale_options(recipe, options);
  set_tensor_scale(p, out, options.scale_source);
  return p;
}

void check_fused(const FusedInput& input) {
  if (!input.is_clamped) return;
  throw Error(ErrorCode::unsupported, std::string("options.input.") + unusual_field(input.swiglu),
              "is not the usual one, which CUDA quantizers take Swiglu with: let the product "
              "before apply it (its transform, or input of its quantized result), or the CPU");
}

bool has_value_vectors(const QuantizeParams& p, const QuantizeConfig& c) {
  return has_value_vectors(p, code_store_bytes(c.element, c.chunk));
}

bool has_value_vectors(const QuantizeParams& p, std::int64_t store) {
  return is_multiple(p.values, store) && is_multiple(p.value_row_stride, store) &&
         is_multiple(p.value_batch_stride, store);
}

}  // namespace blockscale::quantize_detail
