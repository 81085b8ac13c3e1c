// Random layers for tests of every implementation, and the check of what each step of one left in
// the workspace: exactly where a step is exact, else within the bound of its product.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "blockscale/moe.h"
#include "ops/gemm/path.h"
#include "ops/gemm/reference.h"
#include "ops/gemm/test/transformed.h"
#include "ops/grouped_gemm/check.h"
#include "ops/grouped_gemm/validate.h"
#include "ops/moe/layer.h"
#include "ops/moe/validate.h"
#include "tests/gemm_problem.h"

namespace blockscale::test {

/// Where tokens go.
enum class Routing : std::uint8_t {
  uniform,
  skewed,      // most to one expert
  one_hot,     // all to one
  duplicates,  // each of a token's experts is the same
  elsewhere,   // none is here
  half_of_it,  // every other entry is dropped: -1, or an expert of another device
};
inline constexpr Routing kRoutings[] = {Routing::uniform,   Routing::skewed,
                                        Routing::one_hot,   Routing::duplicates,
                                        Routing::elsewhere, Routing::half_of_it};

struct LayerCase {
  Recipe x = Recipe::bf16, w13 = Recipe::fp8_128x128, w2 = Recipe::fp8_128x128;
  std::optional<Recipe> activations = {};
  std::int64_t tokens = 19, hidden = 160, inner = 192, experts = 4;
  int top_k = 3;
  std::int64_t shared = 0, shared_inner = 64;  // experts in tensors of their own, and their I
  std::int32_t first_expert = 0;
  std::int64_t all_experts = 0;
  Routing routing = Routing::uniform;
  QuantizeInput transform = Swiglu{};
  bool apart = false;  // gates and ups
  ScaleLayout layout = ScaleLayout::row_major;
  Format y = Format::bf16;
  bool alphas = false, bias = false, weights = true, residual = false, in_place = false;
  double largest_weight = 1;
  bool weights_on_input = false;
  bool batch_invariant = false;
  bool deterministic = true;
  InputFamily family = InputFamily::normal;
};

inline std::string text_of(const LayerCase& c) {
  return std::string(recipe_traits(c.x).name) + " x " + recipe_traits(c.w13).name + ", " +
         recipe_traits(c.w2).name + ", " + std::to_string(c.tokens) + " tokens, H " +
         std::to_string(c.hidden) + ", I " + std::to_string(c.inner) + ", " +
         std::to_string(c.experts) + " experts, top " + std::to_string(c.top_k) + ", routing " +
         std::to_string(static_cast<int>(c.routing)) + (c.apart ? ", apart" : "") +
         (c.shared > 0 ? ", " + std::to_string(c.shared) + " shared" : "") +
         (c.weights_on_input ? ", weights on the input" : "");
}

/// Owns a layer; y is poison, or the residual.
class LayerProblem {
 public:
  LayerProblem(Random& random, const LayerCase& of)
      : x_(random, of.x, of.tokens, of.hidden, InputFamily::normal),
        w13_(random, of.w13, of.inner * (is_gated(of) && !of.apart ? 2 : 1), of.hidden, of.family,
             operand(of, of.experts * (of.apart ? 2 : 1))),
        w2_(random, of.w2, of.hidden, of.inner, of.family, operand(of, of.experts)),
        shared_w13_(random, of.w13, of.shared_inner * (is_gated(of) ? 2 : 1), of.hidden, of.family,
                    operand(of, std::max<std::int64_t>(of.shared, 1))),
        shared_w2_(random, of.w2, of.hidden, of.shared_inner, of.family,
                   operand(of, std::max<std::int64_t>(of.shared, 1))),
        y_(of.y, of.tokens, of.hidden, 1, of.in_place || of.hidden % 8 == 0 ? 8 : 3),
        residual_(of.y, of.tokens, of.hidden) {
    arguments_.x = x_.view();
    arguments_.w13 = w13_.view();
    arguments_.w2 = w2_.view();
    if (of.shared > 0) arguments_.shared = {shared_w13_.view(), shared_w2_.view()};
    arguments_.top_k = of.top_k;
    arguments_.first_expert = of.first_expert;
    arguments_.all_experts = of.all_experts;
    arguments_.transform = of.transform;
    arguments_.activations = of.activations;
    arguments_.weights_on_input = of.weights_on_input;
    arguments_.batch_invariant = of.batch_invariant;
    arguments_.deterministic = of.deterministic;
    for (std::int64_t i = 0; i < of.tokens * of.top_k; ++i) {
      ids_.push_back(id_of(random, of, i));
      weights_.push_back(static_cast<float>(uniform_real(random, 0, of.largest_weight)));
    }
    arguments_.ids = ids_.data();
    if (of.weights) arguments_.weights = weights_.data();
    if (of.alphas) {
      arguments_.w13_alphas = fill(random, w13_alphas_, of.experts, 0.5, 2);
      arguments_.w2_alphas = fill(random, w2_alphas_, of.experts, 0.5, 2);
    }
    if (of.bias) {
      const auto w13_rows = w13_.view().batch * w13_.view().rows;
      arguments_.w13_bias = fill(random, w13_bias_, w13_rows, -1, 1);
      arguments_.w2_bias = fill(random, w2_bias_, of.experts * of.hidden, -1, 1);
    }
    residual_.fill(random, InputFamily::normal);
    if (of.in_place) y_.copy_elements_from(residual_);
    if (of.residual) arguments_.residual = of.in_place ? y_.view() : residual_.view();
    arguments_.y = y_.view();
  }

  MoeArguments& arguments() { return arguments_; }
  /// The same with the residual as it was, where y was that.
  MoeArguments arguments_before() {
    MoeArguments x = arguments_;
    if (x.residual.data == x.y.data) x.residual = residual_.view();
    return x;
  }
  std::vector<std::int32_t>& ids() { return ids_; }
  /// Has ids go through a map that changes none: they are sorted then, however few there are.
  void map_ids() {
    map_.resize(static_cast<std::size_t>(arguments_.first_expert + arguments_.w2.batch));
    std::iota(map_.begin(), map_.end(), 0);
    arguments_.expert_map = map_.data();
    arguments_.mapped_ids = std::ssize(map_);
  }
  TestMatrix& y() { return y_; }

 private:
  static bool is_gated(const LayerCase& of) { return std::holds_alternative<Swiglu>(of.transform); }
  static OperandOptions operand(const LayerCase& of, std::int64_t batch) {
    OperandOptions options;
    options.layout = of.layout;
    options.batch = batch;
    options.tensor_scale_each_batch = !of.apart;
    return options;
  }
  static std::int32_t id_of(Random& random, const LayerCase& of, std::int64_t entry) {
    const auto last = static_cast<std::int32_t>(of.experts - 1);
    const auto any = static_cast<std::int32_t>(uniform(random, 0, last));
    const bool is_odd = chance(random, 0.5);
    switch (of.routing) {
      case Routing::uniform: break;
      case Routing::skewed: return of.first_expert + (chance(random, 0.8) ? last : any);
      case Routing::one_hot: return of.first_expert + last;
      case Routing::duplicates:
        return of.first_expert + static_cast<std::int32_t>(entry / of.top_k % of.experts);
      case Routing::elsewhere: return is_odd ? -1 : of.first_expert + last + 1 + any;
      case Routing::half_of_it:
        if (is_odd) return chance(random, 0.5) ? -1 : of.first_expert + last + 7;
        break;
    }
    return of.first_expert + any;
  }
  static const float* fill(Random& random, std::vector<float>& numbers, std::int64_t count,
                           double low, double high) {
    for (std::int64_t i = 0; i < count; ++i) {
      numbers.push_back(static_cast<float>(uniform_real(random, low, high)));
    }
    return numbers.data();
  }

  TestOperand x_, w13_, w2_, shared_w13_, shared_w2_;
  TestMatrix y_, residual_;
  std::vector<std::int32_t> ids_, map_;
  std::vector<float> weights_, w13_alphas_, w2_alphas_, w13_bias_, w2_bias_;
  MoeArguments arguments_;
};

/// Has an implementation compute a grouped product of arguments that are not validated.
using Multiply = std::function<void(const GroupedGemmArguments&)>;

/// The first product in f32, without what comes behind it, [entries, rows of w13].
inline std::vector<float> sums_of(const moe_detail::LayerPart& part, const Multiply& multiply) {
  GroupedGemmArguments up = part.up;
  up.quantized.reset();
  up.transform = Identity{};
  std::vector<float> sums(static_cast<std::size_t>(up.rows * up.b.rows), NAN);
  up.d = {sums.data(), Format::f32, up.rows, up.b.rows};
  multiply(up);
  return sums;
}

/// Rows [0, rows) of the tensor between the products, as the first one's sums ask for.
inline void expect_inner(const moe_detail::LayerPart& part, const MoeArguments& x,
                         const std::vector<float>& sums, std::int64_t rows) {
  const GroupedGemmArguments& up = part.up;
  const std::int64_t columns = up.b.rows, inner = moe_detail::inner_of(x);
  const ScaledTensorView got = resolved(part.down.a, "inner");
  if (rows == 0) return;
  const auto differing_rows = [&](const void* left, std::int64_t left_stride, const void* right,
                                  std::int64_t bytes) {
    std::int64_t differing = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      differing += std::memcmp(static_cast<const std::uint8_t*>(left) + r * left_stride,
                               static_cast<const std::uint8_t*>(right) + r * bytes,
                               static_cast<std::size_t>(bytes)) != 0;
    }
    return differing;
  };
  if (!up.quantized) {
    std::vector<std::uint16_t> expected(static_cast<std::size_t>(rows * inner));
    MutableMatrixView d = {expected.data(), Format::bf16, rows, inner, inner};
    d.batch_stride = rows * inner;
    if (std::holds_alternative<Identity>(x.transform)) {
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] =
            static_cast<std::uint16_t>(encode(Format::bf16, sums[i], Overflow::propagate));
      }
    } else {
      store_transformed(x.transform, sums.data(), columns, d);
    }
    EXPECT_EQ(differing_rows(got.values, got.value_row_stride, expected.data(), inner * 2), 0)
        << "rows between the products";
    return;
  }
  QuantizeOptions options;
  options.input = x.transform;
  const ScaledTensor expected = quantize({sums.data(), Format::f32, rows, columns}, got.recipe,
                                         ScaleLayout::row_major, options);
  const ScaledTensorView codes = expected.view();
  EXPECT_EQ(
      differing_rows(got.values, got.value_row_stride, codes.values, row_bytes(got.recipe, inner)),
      0)
      << "codes between the products";
  const std::int64_t size = format_traits(recipe_traits(got.recipe).scale).bits / 8;
  EXPECT_EQ(differing_rows(got.scales, got.scale_leading_stride * size, codes.scales,
                           scale_grid(got.recipe, rows, inner).columns * size),
            0)
      << "scales between the products";
}

/// What stands between the products of shared experts: near what it is of sums without an error, by
/// the step of its type and what sums of FP8 may be off.
inline void expect_shared_inner(const moe_detail::SharedProducts& shared, const MoeArguments& x) {
  GemmArguments up = shared.up;
  up.a = resolved(up.a, "a");
  up.b = x.shared->w13;
  up.quantized.reset();
  const ScaledTensorView got = resolved(shared.down.a, "inner");
  const double step = is_plain(got.recipe) ? 0x1p-8 : 0x1p-4;
  std::int64_t far = 0;
  for (std::int64_t s = 0; s < up.b.batch; ++s) {
    std::vector<std::vector<double>> weights;
    for (std::int64_t i = 0; i < up.b.rows; ++i) {
      weights.push_back(gemm_detail::operand_row(up.b, s, i));
    }
    for (std::int64_t t = 0; t < up.a.rows; ++t) {
      const std::vector<double> token = gemm_detail::operand_row(up.a, 0, t);
      std::vector<float> sums;
      double of_sum = 0, largest_sum = 0;  // error, and magnitude
      for (std::int64_t i = 0; i < up.b.rows; ++i) {
        const auto sum = gemm_detail::reference_element(up, s, t, i, token,
                                                        weights[static_cast<std::size_t>(i)]);
        sums.push_back(static_cast<float>(sum.value));
        of_sum = std::max(of_sum, 0x1p-12 * sum.magnitude);
        largest_sum = std::max(largest_sum, std::abs(sum.value));
      }
      const std::vector<double> inner = gemm_detail::operand_row(got, s, t);
      for (std::size_t c = 0; c < inner.size(); ++c) {
        const double y = std::holds_alternative<Identity>(x.transform)
                             ? double{sums[c]}
                             : double{transformed(x.transform, sums.data(), up.b.rows,
                                                  static_cast<std::int64_t>(c))};
        const double allowed = step * std::abs(y) + 2 * of_sum * (1 + largest_sum) +
                               0x1p-18 * largest_sum * largest_sum;
        far += std::abs(inner[c] - y) > allowed;
      }
    }
  }
  EXPECT_EQ(far, 0) << "numbers between the products of shared experts";
}

/// The second product of shared experts, as that of groups which all have every token.
inline void expect_shared_rows(const moe_detail::SharedProducts& shared,
                               gemm_detail::GemmPath path) {
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(shared.down.d.batch),
                                         static_cast<std::int32_t>(shared.down.d.rows));
  GroupedGemmArguments down;
  down.a = shared.down.a;
  down.b = shared.down.b;
  down.d = shared.down.d;
  down.lengths = tokens.data();
  const GemmCheck rows =
      grouped_gemm_detail::check_elements(grouped_gemm_detail::validated(down), 512, path);
  EXPECT_TRUE(rows.passed()) << rows.largest_error << " " << rows.of_usual << ", shared";
}

/// Every element of the rows that weights are multiplied with, those of `entries`, and zeros.
inline void expect_weighted(const moe_detail::WeighArguments& got, const MoeArguments& x,
                            const std::vector<std::int32_t>& entries) {
  const std::int64_t size = format_traits(got.rows.dtype).bits / 8;
  std::int64_t differences = 0;
  for (std::int64_t row = 0; row < got.rows.rows; ++row) {
    const bool has_entry = row < std::ssize(entries);
    const std::int64_t entry = has_entry ? entries[static_cast<std::size_t>(row)] : 0;
    for (std::int64_t c = 0; c < got.rows.columns; ++c) {
      const auto element =
          static_cast<float>(gemm_detail::matrix_element(got.x, 0, entry / x.top_k, c));
      const float product = has_entry ? x.weights[entry] * element : 0.0f;
      const std::uint32_t code = encode(got.rows.dtype, product, Overflow::propagate);
      std::uint32_t stored = 0;
      std::memcpy(
          &stored,
          static_cast<const std::uint8_t*>(got.rows.data) + (row * got.rows.row_stride + c) * size,
          static_cast<std::size_t>(size));
      differences += stored != code;
    }
  }
  EXPECT_EQ(differences, 0) << "elements of weighted rows";
}

/// Every element of y, from the rows that the second product left.
inline void expect_sums(const moe_detail::LayerPart& part, const MoeArguments& x) {
  const moe_detail::FinalizeArguments& f = part.finalize;
  const auto* const rows = static_cast<const std::uint16_t*>(f.rows.values);
  const std::int64_t stride = f.rows.value_row_stride / 2;
  std::int64_t differences = 0;
  for (std::int64_t t = 0; t < f.y.rows; ++t) {
    for (std::int64_t c = 0; c < f.y.columns; ++c) {
      float sum = 0;
      if (x.residual.data != nullptr) {
        sum = static_cast<float>(gemm_detail::matrix_element(x.residual, 0, t, c));
      }
      for (std::int64_t s = 0; x.shared && s < x.shared->w2.batch; ++s) {
        sum += static_cast<float>(gemm_detail::matrix_element(f.shared, s, t, c));
      }
      for (int j = 0; j < x.top_k; ++j) {
        const std::int64_t entry = t * x.top_k + j;
        const std::int32_t row = f.row_of_entry[entry];
        if (row < 0) continue;
        const bool is_one = x.weights == nullptr || x.weights_on_input;
        const float weight = is_one ? 1.0f : x.weights[entry];
        const auto value = bit_cast<float>(std::uint32_t{rows[row * stride + c]} << 16);
        const float product = weight * value;
        sum += product;
      }
      const std::uint32_t code = encode(f.y.dtype, sum, Overflow::propagate);
      std::uint32_t got = 0;
      const std::int64_t size = format_traits(f.y.dtype).bits / 8;
      std::memcpy(&got,
                  static_cast<const std::uint8_t*>(f.y.data) + (t * f.y.row_stride + c) * size,
                  static_cast<std::size_t>(size));
      differences += got != code;
    }
  }
  EXPECT_EQ(differences, 0) << "elements of y";
}

/// Elements of a y that rows were added to in any order which are further from those of the same
/// layer in order than roundings of what is added take them.
inline std::int64_t count_far(const moe_detail::LayerPart& ordered, const MoeArguments& x,
                              const MatrixView& added) {
  const moe_detail::FinalizeArguments& f = ordered.finalize;
  const auto* const rows = static_cast<const std::uint16_t*>(f.rows.values);
  const std::int64_t stride = f.rows.value_row_stride / 2;
  // In order each row is rounded to bf16; else each one and each sum to y's dtype.
  const double half_step = std::ldexp(0.5, -format_traits(added.dtype).mantissa_bits);
  const int roundings = 2 * x.top_k + 3;
  const double step = 0x1p-8 + roundings * half_step;
  std::int64_t far = 0;
  for (std::int64_t t = 0; t < f.y.rows; ++t) {
    for (std::int64_t c = 0; c < f.y.columns; ++c) {
      double magnitude = added.dtype == Format::f16 ? 0x1p-14 : 0;  // the least normal
      if (x.residual.data != nullptr) {
        magnitude += std::abs(gemm_detail::matrix_element(x.residual, 0, t, c));
      }
      for (std::int64_t s = 0; x.shared && s < x.shared->w2.batch; ++s) {
        magnitude += std::abs(gemm_detail::matrix_element(f.shared, s, t, c));
      }
      for (int j = 0; j < x.top_k; ++j) {
        const std::int64_t entry = t * x.top_k + j;
        const std::int32_t row = f.row_of_entry[entry];
        if (row < 0) continue;
        const float weight = f.weights == nullptr ? 1.0f : f.weights[entry];
        const auto value = bit_cast<float>(std::uint32_t{rows[row * stride + c]} << 16);
        magnitude += std::abs(double{weight} * double{value});
      }
      const double difference = std::abs(gemm_detail::matrix_element(added, 0, t, c) -
                                         gemm_detail::matrix_element(f.y, 0, t, c));
      far += !(difference <= step * magnitude);
    }
  }
  return far;
}

inline void expect_quantized(const moe_detail::QuantizeRows& got) {
  const ScaledTensor expected = quantize(got.x, got.out.recipe);
  for (std::int64_t r = 0; r < got.x.rows; ++r) {
    EXPECT_EQ(
        std::memcmp(static_cast<const std::uint8_t*>(got.out.values) + r * got.out.value_row_stride,
                    static_cast<const std::uint8_t*>(expected.view().values) + r * got.x.columns,
                    static_cast<std::size_t>(got.x.columns)),
        0)
        << "row " << r << " of what is quantized";
  }
}

/// Entries by expert, each expert's in their order.
inline std::vector<std::int32_t> sorted_entries(const MoeArguments& x) {
  std::vector<std::int32_t> entries;
  for (std::int64_t e = 0; e < moe_detail::experts_of(x); ++e) {
    for (std::int64_t i = 0; i < x.x.rows * x.top_k; ++i) {
      if (std::int64_t{x.ids[i]} - x.first_expert == e) {
        entries.push_back(static_cast<std::int32_t>(i));
      }
    }
  }
  return entries;
}

/// Puts back what the first product read, whose memory the second one's rows took.
inline void restore_input(const moe_detail::QuantizeRows& q) {
  if (q.row_index == nullptr) return quantize(q.x, q.out);
  const std::int64_t bytes = q.x.row_stride * (format_traits(q.x.dtype).bits / 8);
  const std::int64_t scale = format_traits(recipe_traits(q.out.recipe).scale).bits / 8;
  for (std::int64_t r = 0; r < q.out.rows; ++r) {
    if (q.row_index[r] < 0) continue;
    MatrixView x = q.x;
    x.data = static_cast<const std::uint8_t*>(x.data) + q.row_index[r] * bytes;
    MutableScaledTensorView out = q.out;
    out.values = static_cast<std::uint8_t*>(out.values) + r * out.value_row_stride;
    out.scales = static_cast<std::uint8_t*>(out.scales) + r * out.scale_leading_stride * scale;
    x.rows = out.rows = 1;
    quantize(x, out);
  }
}

/// Checks all that a layer of one part left: `arguments` as they were before the call. What was
/// quantized is not there any more; that the first product read it shows in what it left.
inline void expect_layer(const MoeArguments& arguments, void* workspace, moe_detail::Gather gather,
                         const Multiply& multiply, gemm_detail::GemmPath path,
                         gemm_detail::GemmPath down_path, gemm_detail::GemmPath shared_down_path) {
  const MoeArguments x = moe_detail::validated(arguments, {});
  if (x.x.rows == 0) return;
  const moe_detail::LayerPart part = moe_detail::part_of(x, 0, x.x.rows, workspace, gather);
  ASSERT_TRUE(part.sort.has_value());
  const std::vector<std::int32_t> entries = sorted_entries(x);
  for (std::size_t row = 0; row < entries.size(); ++row) {
    if (!part.weigh) {
      EXPECT_EQ(part.sort->token_of_row[row], entries[row] / x.top_k);
    }
    EXPECT_EQ(part.sort->row_of_entry[entries[row]], static_cast<std::int32_t>(row));
  }
  ASSERT_EQ(part.sort->offsets[moe_detail::experts_of(x)], std::ssize(entries));
  EXPECT_EQ(part.weigh.has_value(), moe_detail::weighs_input(x));
  if (part.weigh) expect_weighted(*part.weigh, x, entries);
  constexpr std::int64_t kSamples = 512;
  const GemmCheck of_down = grouped_gemm_detail::check_elements(
      grouped_gemm_detail::validated(part.down), kSamples, down_path);
  EXPECT_TRUE(of_down.passed()) << of_down.largest_error << " " << of_down.of_usual;
  expect_sums(part, x);
  if (part.quantize) restore_input(*part.quantize);
  ASSERT_EQ(part.shared.has_value(), x.shared.has_value());
  if (part.shared) {
    // Its rows are those of tokens, where the layer's are those of entries.
    EXPECT_EQ(part.shared->quantize.has_value(), part.quantize && part.up.index == nullptr);
    if (part.shared->quantize) expect_quantized(*part.shared->quantize);
    expect_shared_inner(*part.shared, x);
    expect_shared_rows(*part.shared, shared_down_path);
  }
  const std::vector<float> sums = sums_of(part, multiply);
  GroupedGemmArguments up = part.up;
  up.quantized.reset();
  up.transform = Identity{};
  up.d = {const_cast<float*>(sums.data()), Format::f32, up.rows, up.b.rows};
  const GemmCheck of_up =
      grouped_gemm_detail::check_elements(grouped_gemm_detail::validated(up), kSamples, path);
  EXPECT_TRUE(of_up.passed()) << of_up.largest_error << " " << of_up.of_usual;
  expect_inner(part, x, sums, std::ssize(entries));
}

}  // namespace blockscale::test
