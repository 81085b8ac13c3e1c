#include "ops/quantize/validate.h"

#include <cmath>
#include <string>
#include <vector>

#include "ops/common/checks.h"

namespace blockscale::quantize_detail {
namespace {

using checks::fail;
using checks::text;

void check_equal(const std::string& argument, std::int64_t value, std::int64_t expected,
                 const char* expected_name) {
  if (value == expected) return;
  fail(argument.c_str(), "is " + std::to_string(value) + ", must be " + std::to_string(expected) +
                             " (" + expected_name + ")");
}

/// All that is read besides scales that the caller gives.
std::vector<Region> regions_of(const MatrixView& x, const FusedInput& input) {
  std::vector<Region> regions = {{"x.data", lines_of(x)}};
  const auto add = [&](const char* name, const MatrixView& operand) {
    if (operand.data != nullptr) regions.push_back({name, lines_of(operand)});
  };
  add("options.input.scale", input.scale);
  add("options.input.shift", input.shift);
  add("options.input.weight", input.weight);
  return regions;
}

std::vector<Region> regions_of(const std::string& name, const ScaledTensorView& tensor) {
  return {{name + ".values", values_of(tensor)},
          {name + ".scales", scales_of(tensor)},
          {name + ".tensor_scale", tensor_scales_of(tensor)}};
}

Region region_of(const AbsoluteMaximumArguments& a) {
  return {"out", line_of(a.out, a.x.batch * std::int64_t{sizeof(float)})};
}

std::vector<Region> joined(std::vector<Region> regions, const std::vector<Region>& more) {
  regions.insert(regions.end(), more.begin(), more.end());
  return regions;
}

std::vector<Region> written_regions_of(const RowsAndColumnsArguments& a) {
  return joined(regions_of("out_rows", a.rows), regions_of("out_columns", a.columns));
}

/// Nothing that is written may overlap what is read, nor another thing that is written.
void check_all_apart(const std::vector<Region>& written, const std::vector<Region>& read) {
  for (std::size_t i = 0; i < written.size(); ++i) {
    check_apart(written[i], read);
    for (std::size_t j = 0; j < i; ++j) check_apart(written[i], written[j]);
  }
}

void check_threads(const char* argument, int threads) {
  if (threads < 0) {
    fail(argument, "is " + std::to_string(threads) + ", must be 0 (all) or above");
  }
}

void check_scale_choice(const QuantizeOptions& options, const RecipeTraits& t) {
  const int choice = static_cast<int>(options.scale_choice);
  if (choice > static_cast<int>(ScaleChoice::weighted)) {
    fail("options.scale_choice",
         "is " + std::to_string(choice) + ", must be amax, mse or weighted");
  }
  const bool searched = options.scale_choice != ScaleChoice::amax;
  if (searched && t.family != Family::mx && t.family != Family::nvfp4) {
    fail("options.scale_choice",
         std::string("is given, but ") + t.name + " has no choice: only MX recipes and nvfp4 do");
  }
  const bool weighted = options.scale_choice == ScaleChoice::weighted;
  if (weighted != (options.channel_weights != nullptr)) {
    fail("options.channel_weights", weighted
                                        ? "is null, must hold a weight for each column"
                                        : "is given, but options.scale_choice is not weighted");
  }
  checks::check_pointer("options.channel_weights", "", options.channel_weights, false,
                        alignof(float));
  if (options.channel_means != nullptr && !weighted) {
    fail("options.channel_means", "is given, but options.scale_choice is not weighted");
  }
  if (options.channel_means != nullptr && t.family != Family::mx) {
    fail("options.channel_means",
         std::string("is given, but ") + t.name + " takes weights alone: MX recipes take means");
  }
  checks::check_pointer("options.channel_means", "", options.channel_means, false, alignof(float));
  if (options.scale_errors != nullptr && !searched) {
    fail("options.scale_errors", "is given, but options.scale_choice is amax");
  }
}

void check_options(const QuantizeOptions& options, const RecipeTraits& t) {
  const int mode = static_cast<int>(options.mx_scale_mode);
  if (mode > static_cast<int>(MxScaleMode::even_e2m1)) {
    fail("options.mx_scale_mode",
         "is " + std::to_string(mode) + ", must be floor, ceil, even or even_e2m1");
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
  check_scale_choice(options, t);
  check_threads("options.threads", options.threads);
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

namespace {

/// The checks of one output, named `name`, but for memory.
void check_output(const MatrixView& x, const MutableScaledTensorView& out, const std::string& name,
                  const QuantizeOptions& options) {
  const RecipeTraits& t = recipe_traits(out.recipe);
  if (t.family == Family::plain) {
    fail((name + ".recipe").c_str(), std::string("is ") + t.name + ", must be a scaled recipe");
  }
  check_equal(name + ".rows", out.rows, x.rows, "x.rows");
  check_equal(name + ".batch", out.batch, x.batch, "x.batch");
  check_options(options, t);
  const bool dynamic = options.scale_source == ScaleSource::dynamic;
  if (t.tensor_scale && dynamic && out.tensor_scale == nullptr) {
    fail((name + ".tensor_scale").c_str(),
         "is null, must point to where the tensor scale is written");
  }
}

}  // namespace

QuantizeArguments validated_shape(const MatrixView& x, const MutableScaledTensorView& out,
                                  const QuantizeOptions& options) {
  QuantizeArguments a{x, resolved(out, "out"), {}};
  check_output(a.x, a.out, "out", options);
  a.input = validated(a.x, options.input, a.out.k, "out.k");
  return a;
}

QuantizeArguments validated(const MatrixView& x, const MutableScaledTensorView& out,
                            const QuantizeOptions& options) {
  QuantizeArguments a = validated_shape(resolved(x, "x"), out, options);
  std::vector<Region> read = regions_of(a.x, a.input);
  const std::int64_t line = a.out.k * std::int64_t{sizeof(float)};
  if (options.channel_weights != nullptr) {
    read.push_back({"options.channel_weights", line_of(options.channel_weights, line)});
  }
  if (options.channel_means != nullptr) {
    read.push_back({"options.channel_means", line_of(options.channel_means, line)});
  }
  check_all_apart(regions_of("out", a.out), read);
  return a;
}

QuantizeArguments validated_gather(const MatrixView& x, const std::int32_t* row_index,
                                   const MutableScaledTensorView& out,
                                   const QuantizeOptions& options) {
  MatrixView rows = resolved(x, "x");
  rows.rows = out.rows;
  QuantizeArguments a = validated_shape(rows, out, options);
  a.row_index = row_index;
  return a;
}

RowsAndColumnsArguments validated(const MatrixView& x, const MutableScaledTensorView& out_rows,
                                  const MutableScaledTensorView& out_columns,
                                  const QuantizeOptions& options) {
  RowsAndColumnsArguments a{
      resolved(x, "x"), resolved(out_rows, "out_rows"), resolved(out_columns, "out_columns"), {}};
  const RecipeTraits& t = recipe_traits(a.rows.recipe);
  if (t.family != Family::fp8 || t.block_rows != 1 || t.block_k != 128) {
    fail("out_rows.recipe",
         std::string("is ") + t.name + ", must be fp8_1x128, fp8_1x128_pow2 or fp8_1x128_ue8m0");
  }
  if (a.columns.recipe != a.rows.recipe) {
    fail("out_columns.recipe", std::string("is ") + recipe_traits(a.columns.recipe).name +
                                   ", must be " + t.name + " (out_rows.recipe)");
  }
  check_output(a.x, a.rows, "out_rows", options);
  a.input = validated(a.x, options.input, a.rows.k, "out_rows.k");
  check_equal("out_columns.rows", a.columns.rows, a.rows.k, "out_rows.k");
  check_equal("out_columns.k", a.columns.k, a.x.rows, "x.rows");
  check_equal("out_columns.batch", a.columns.batch, a.x.batch, "x.batch");
  check_all_apart(written_regions_of(a), regions_of(a.x, a.input));
  return a;
}

DequantizeArguments validated(const ScaledTensorView& x, const MutableMatrixView& out,
                              int threads) {
  const DequantizeArguments a{resolved(x, "x"), resolved(out, "out")};
  check_equal("out.rows", a.out.rows, a.x.rows, "x.rows");
  check_equal("out.columns", a.out.columns, a.x.k, "x.k");
  check_equal("out.batch", a.out.batch, a.x.batch, "x.batch");
  check_threads("threads", threads);
  check_apart({"out.data", lines_of(a.out)}, regions_of("x", a.x));
  return a;
}

AbsoluteMaximumArguments validated(const MatrixView& x, const QuantizeInput& input,
                                   const float* out, int threads) {
  AbsoluteMaximumArguments a{resolved(x, "x"), {}, 0, out};
  checks::check_pointer("out", "", out, a.x.batch > 0, alignof(float));
  check_threads("threads", threads);
  a.k = transformed_columns(a.x, input);
  a.input = validated(a.x, input, a.k, "x.columns");
  check_apart(region_of(a), regions_of(a.x, a.input));
  return a;
}

std::vector<Region> regions_of(const QuantizeArguments& a) {
  return joined(regions_of("out", a.out), regions_of(a.x, a.input));
}
std::vector<Region> regions_of(const RowsAndColumnsArguments& a) {
  return joined(written_regions_of(a), regions_of(a.x, a.input));
}
std::vector<Region> regions_of(const AbsoluteMaximumArguments& a) {
  return joined({region_of(a)}, regions_of(a.x, a.input));
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

void check_channel_weights(const float* weights, std::int64_t k) {
  for (std::int64_t i = 0; weights != nullptr && i < k; ++i) {
    if (std::isfinite(weights[i]) && weights[i] >= 0) continue;
    fail("options.channel_weights", "is " + text(weights[i]) + " for column " + std::to_string(i) +
                                        ", must be finite and at least 0");
  }
}

void check_channel_means(const float* means, const float* weights, std::int64_t k) {
  constexpr double kRounding = 1 + 1e-4;  // both were rounded to f32, or more
  for (std::int64_t i = 0; means != nullptr && i < k; ++i) {
    const double square = double{means[i]} * double{means[i]};
    if (square <= double{weights[i]} * kRounding + 1e-30) continue;  // false for NaN
    fail("options.channel_means", "is " + text(means[i]) + " for column " + std::to_string(i) +
                                      ", must have a square of at most its weight, " +
                                      text(weights[i]));
  }
}

}  // namespace blockscale::quantize_detail
