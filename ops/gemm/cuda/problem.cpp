#include "ops/gemm/cuda/problem.h"

#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "blockscale/error.h"
#include "ops/gemm/cuda/specs.h"
#include "ops/gemm/validate.h"
#include "runtime/kernels/architecture.h"

namespace blockscale::gemm_detail {
namespace {

void check_operand(const ScaledTensorView& x, const char* argument) {
  const RecipeTraits& t = recipe_traits(x.recipe);
  if (t.family != Family::fp8 || t.element != Format::e4m3) {
    throw Error(ErrorCode::unsupported, std::string(argument) + ".recipe",
                std::string("is ") + t.name +
                    "; products on CUDA devices take FP8 recipes of e4m3 (fp8_tensor, fp8_row, "
                    "fp8_1x128, fp8_128x128 and their kin)");
  }
}

void check_chip(const cuda::Chip& chip) {
  for (const char* const architecture : kWgmmaArchitectures) {
    if (runtime::runs_on(architecture, chip.architecture)) return;
  }
  throw Error(ErrorCode::unsupported, "a.recipe",
              "has no kernel for " + chip.name + " (compute capability " +
                  runtime::compute_capability_text(chip.architecture) + ")");
}

}  // namespace

bool has_kernels_of(const char* architecture, const cuda::Chip& chip) {
  return !chip.plain_only && runtime::runs_on(architecture, chip.architecture);
}

void check_size(const char* argument, std::int64_t value) {
  if (value < kMostElements) return;
  throw Error(ErrorCode::unsupported, argument,
              "is " + std::to_string(value) + "; products on CUDA devices take less than 2^31");
}

void check_problem(const GemmArguments& x, const cuda::Chip& chip) {
  check_operand(x.a, "a");
  check_operand(x.b, "b");
  check_size("d.rows", x.d.rows);
  check_size("d.columns", x.d.columns);
  check_size("a.k", x.a.k);
  check_size("d.batch", x.d.batch);
  check_chip(chip);
  if (x.d.rows == 0 || x.d.columns == 0 || x.d.batch == 0) return;
  if (ceil_div(x.d.rows, 64) * ceil_div(x.d.columns, 32) > kMostElements / x.d.batch - 1) {
    throw Error(ErrorCode::unsupported, "d", "has 2^31 tiles of 64 x 32 or more");
  }
}

bool begins_at_16_bytes(const ScaledTensorView& x) {
  return reinterpret_cast<std::uintptr_t>(x.values) % 16 == 0 &&
         (x.rows <= 1 || x.value_row_stride % 16 == 0) &&
         (x.batch <= 1 || x.value_batch_stride % 16 == 0);
}

GemmScales scales_of_operand(const ScaledTensorView& x) {
  const RecipeTraits& t = recipe_traits(x.recipe);
  GemmScales s;
  if (t.family == Family::plain) return s;
  s.data = static_cast<const std::uint8_t*>(x.scales);
  s.layout = x.layout;
  s.bytes = format_traits(t.scale).bits == 8;
  s.row_shift =
      t.block_rows == 0 ? 0 : static_cast<std::uint32_t>(std::countr_zero(unsigned(t.block_rows)));
  s.row_stride = x.layout == ScaleLayout::mn_major ? 1 : x.scale_leading_stride;
  s.k_stride = scale_offset(x.layout, 0, 1, x.scale_leading_stride);
  s.k_stride_4 = scale_offset(x.layout, 0, 4, x.scale_leading_stride);
  if (t.block_rows == 0) s.row_stride = 0;
  if (t.block_k == 0) s.k_stride = s.k_stride_4 = 0;
  s.batch_stride = x.batch > 1 ? x.scale_batch_stride : 0;
  return s;
}

TensorScale tensor_scale_of(const ScaledTensorView& x) {
  if (!recipe_traits(x.recipe).tensor_scale || x.tensor_scale == nullptr) return {};
  return {x.tensor_scale, x.batch > 1 ? x.tensor_scale_batch_stride : 0,
          x.sense == TensorScaleSense::divisor};
}

void check_scales(const GemmScales& scales, const ScaledTensorView& x, const char* argument) {
  const std::int64_t last = scales.row_offset(static_cast<std::uint32_t>(x.rows - 1));
  if (last < std::numeric_limits<std::uint32_t>::max()) return;
  throw Error(ErrorCode::unsupported, std::string(argument) + ".scale_leading_stride",
              "is " + std::to_string(x.scale_leading_stride) +
                  ", which puts the last row's scales " + std::to_string(last) +
                  " after the first's; products on CUDA devices take less than 2^32 - 1");
}

LinearEpilogue epilogue_of(const GemmArguments& x) {
  LinearEpilogue e;
  if (!x.quantized) {
    e.d = matrix_of(x.d);
    e.d.chunks = has_chunks(x.d);
  }
  if (x.beta != 0) e.c = matrix_of(x.c);
  e.bias.data = static_cast<std::uint8_t*>(const_cast<void*>(x.bias));
  e.bias.dtype = x.bias_dtype;
  e.gate.data = static_cast<std::uint8_t*>(const_cast<void*>(x.gate));
  e.gate.dtype = x.gate_dtype;
  e.alpha_factor = x.alpha_factor;
  e.alpha = x.alpha;
  e.beta = x.beta;
  e.keeps_sums = x.alpha_factor == nullptr && x.alpha == 1 && x.beta == 0 && x.bias == nullptr &&
                 x.gate == nullptr;
  e.rows = static_cast<std::uint32_t>(x.d.rows);
  e.columns = static_cast<std::uint32_t>(x.d.columns);
  return e;
}

bool has_scales_at_end(const GemmArguments& x) {
  return recipe_traits(x.a.recipe).block_k == 0 && recipe_traits(x.b.recipe).block_k == 0;
}

namespace {

EpilogueScales at_end(const GemmScales& scales) {
  return {reinterpret_cast<const float*>(scales.data), scales.row_stride, scales.batch_stride};
}

}  // namespace

void move_scales_to_end(const GemmArguments& x, GemmScales& a_scales, GemmScales& b_scales,
                        LinearEpilogue& epilogue) {
  if (!has_scales_at_end(x)) return;
  const auto taken = [&](GemmScales& scales) -> EpilogueScales {
    const GemmScales moved = std::exchange(scales, {});
    if (x.a.k == 0) return {};  // which has no scales, though it may have an address for them
    return at_end(moved);
  };
  epilogue.row_scales = taken(a_scales);
  epilogue.column_scales = taken(b_scales);
  epilogue.keeps_sums = false;
}

void leave_row_scales(const ScaledTensorView& a, LinearEpilogue& epilogue) {
  epilogue.row_scales = at_end(scales_of_operand(a));
  epilogue.keeps_sums = false;
}

GemmArguments columns_of(GemmArguments x, std::int64_t first, std::int64_t count) {
  if (x.quantized) return x;
  const auto cut = [&](auto& matrix) {
    matrix.data = byte_at(matrix.data, first * (format_traits(matrix.dtype).bits / 8));
    matrix.columns = count;
  };
  const GemmScales scales = scales_of_operand(x.b);
  x.b.values = byte_at(x.b.values, first * x.b.value_row_stride);
  x.b.scales = byte_at(
      x.b.scales, scales.row_offset(static_cast<std::uint32_t>(first)) * (scales.bytes ? 1 : 4));
  x.b.rows = count;
  cut(x.d);
  if (x.beta != 0) cut(x.c);
  if (x.bias != nullptr) x.bias = byte_at(x.bias, first * (format_traits(x.bias_dtype).bits / 8));
  if (x.gate != nullptr) x.gate = byte_at(x.gate, first * (format_traits(x.gate_dtype).bits / 8));
  return x;
}

}  // namespace blockscale::gemm_detail
