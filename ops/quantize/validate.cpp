#include "ops/quantize/validate.h"

#include <cmath>
#include <cstdio>
#include <string>

#include "ops/tensor/overlap.h"

namespace blockscale::quantize_detail {
namespace {

[[noreturn]] void fail(const char* argument, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, argument, message);
}

std::string text(float value) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.9g", static_cast<double>(value));
  return buffer;
}

void check_equal(const char* argument, std::int64_t value, std::int64_t expected,
                 const char* expected_name) {
  if (value == expected) return;
  fail(argument, "is " + std::to_string(value) + ", must be " + std::to_string(expected) + " (" +
                     expected_name + ")");
}

void check_apart(const char* argument, const MemoryLines& written, const char* other_argument,
                 const MemoryLines& other) {
  if (overlap(written, other)) {
    fail(argument, std::string("overlaps ") + other_argument + ", must not share memory with it");
  }
}

void check_threads(const char* argument, int threads) {
  if (threads < 0) {
    fail(argument, "is " + std::to_string(threads) + ", must be 0 (all) or above");
  }
}

void check_options(const QuantizeOptions& options, const RecipeTraits& t) {
  const int mode = static_cast<int>(options.mx_scale_mode);
  if (mode > static_cast<int>(MxScaleMode::even)) {
    fail("options.mx_scale_mode", "is " + std::to_string(mode) + ", must be floor, ceil or even");
  }
  const int source = static_cast<int>(options.scale_source);
  if (source > static_cast<int>(ScaleSource::given)) {
    fail("options.scale_source", "is " + std::to_string(source) + ", must be dynamic or given");
  }
  const bool can_be_given = t.tensor_scale || (t.family == Family::fp8 && t.block_k == 0);
  if (options.scale_source == ScaleSource::given && !can_be_given) {
    fail("options.scale_source", std::string("is given, but ") + t.name +
                                     " takes its scales from the data; nvfp4, fp8_tensor and "
                                     "fp8_row can be given theirs");
  }
  if (!std::isfinite(options.fp8_amax_floor) || options.fp8_amax_floor < 0) {
    fail("options.fp8_amax_floor",
         "is " + text(options.fp8_amax_floor) + ", must be finite and at least 0");
  }
  check_threads("options.threads", options.threads);
}

/// What is written must not overlap what the transform reads besides x.
void check_apart_from_operands(const QuantizeArguments& a, const MemoryLines& values,
                               const MemoryLines& scales, const MemoryLines& tensor_scales) {
  const auto check = [&](const char* name, const MatrixView& operand) {
    if (operand.data == nullptr) return;
    const MemoryLines lines = lines_of(operand);
    check_apart("out.values", values, name, lines);
    check_apart("out.scales", scales, name, lines);
    check_apart("out.tensor_scale", tensor_scales, name, lines);
  };
  check("options.input.scale", a.input.scale);
  check("options.input.shift", a.input.shift);
  check("options.input.weight", a.input.weight);
}

bool is_usable(float scale, float smallest) {
  return std::isfinite(scale) && scale > 0 && scale >= smallest;
}

[[noreturn]] void fail_scale(const char* argument, float scale, const std::string& where,
                             float smallest) {
  const std::string allowed = smallest > 0 ? "at least " + text(smallest) : "above 0";
  fail(argument, "is " + text(scale) + " for " + where + ", must be finite and " + allowed);
}

}  // namespace

QuantizeArguments validated(const MatrixView& x, const MutableScaledTensorView& out,
                            const QuantizeOptions& options) {
  QuantizeArguments a{resolved(x, "x"), resolved(out, "out"), {}};
  const RecipeTraits& t = recipe_traits(a.out.recipe);
  if (t.family == Family::plain) {
    fail("out.recipe", std::string("is ") + t.name + ", must be a scaled recipe");
  }
  check_equal("out.rows", a.out.rows, a.x.rows, "x.rows");
  check_equal("out.batch", a.out.batch, a.x.batch, "x.batch");
  a.input = validated(a.x, options.input, a.out.k);
  check_options(options, t);
  const bool dynamic = options.scale_source == ScaleSource::dynamic;
  if (t.tensor_scale && dynamic && a.out.tensor_scale == nullptr) {
    fail("out.tensor_scale", "is null, must point to where the tensor scale is written");
  }
  const MemoryLines input = lines_of(a.x);
  const MemoryLines values = values_of(a.out);
  const MemoryLines scales = scales_of(a.out);
  const MemoryLines tensor_scales = tensor_scales_of(a.out);
  check_apart("out.values", values, "x.data", input);
  check_apart("out.scales", scales, "x.data", input);
  check_apart("out.tensor_scale", tensor_scales, "x.data", input);
  check_apart("out.scales", scales, "out.values", values);
  check_apart("out.tensor_scale", tensor_scales, "out.values", values);
  check_apart("out.tensor_scale", tensor_scales, "out.scales", scales);
  check_apart_from_operands(a, values, scales, tensor_scales);
  return a;
}

DequantizeArguments validated(const ScaledTensorView& x, const MutableMatrixView& out,
                              int threads) {
  const DequantizeArguments a{resolved(x, "x"), resolved(out, "out")};
  check_equal("out.rows", a.out.rows, a.x.rows, "x.rows");
  check_equal("out.columns", a.out.columns, a.x.k, "x.k");
  check_equal("out.batch", a.out.batch, a.x.batch, "x.batch");
  check_threads("threads", threads);
  const MemoryLines output = lines_of(a.out);
  check_apart("out.data", output, "x.values", values_of(a.x));
  check_apart("out.data", output, "x.scales", scales_of(a.x));
  check_apart("out.data", output, "x.tensor_scale", tensor_scales_of(a.x));
  return a;
}

MatrixView validated(const MatrixView& x, const float* out, int threads) {
  const MatrixView input = resolved(x, "x");
  if (out == nullptr && input.batch > 0) fail("out", "is null, must point to x.batch floats");
  check_threads("threads", threads);
  const std::int64_t size = sizeof(float);
  const auto address = reinterpret_cast<std::uintptr_t>(out);
  check_apart("out", {address, input.batch * size, 1, 0, 1, 0}, "x.data", lines_of(input));
  return input;
}

void check_given_scales(const MutableScaledTensorView& out) {
  const RecipeTraits& t = recipe_traits(out.recipe);
  if (t.tensor_scale) {
    if (out.tensor_scale == nullptr) return;
    // 1 / t must not exceed the largest finite f32 by more than its rounding (numerics.md).
    const float smallest = out.sense == TensorScaleSense::multiplier ? 0x1p-128f : 0.0f;
    const std::int64_t count = out.tensor_scale_batch_stride == 0 ? 1 : out.batch;
    for (std::int64_t b = 0; b < count; ++b) {
      if (is_usable(out.tensor_scale[b], smallest)) continue;
      fail_scale("out.tensor_scale", out.tensor_scale[b], "matrix " + std::to_string(b), smallest);
    }
    return;
  }
  const ScaleGrid grid = scale_grid(out.recipe, out.rows, out.k);
  for (std::int64_t b = 0; b < (grid.rows == 0 ? 0 : out.batch); ++b) {
    const float* const scales = static_cast<const float*>(out.scales) + b * out.scale_batch_stride;
    for (std::int64_t i = 0; i < grid.rows; ++i) {
      const float scale = scales[scale_offset(out.layout, i, 0, out.scale_leading_stride)];
      if (is_usable(scale, 0.0f)) continue;
      fail_scale("out.scales", scale,
                 "row " + std::to_string(i) + " of matrix " + std::to_string(b), 0.0f);
    }
  }
}

}  // namespace blockscale::quantize_detail
