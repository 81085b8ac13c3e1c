// Random products for tests of the plain kernels, in the host's memory: any pair, layout, edge and
// epilogue, operands at any byte, and what a launch may touch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ops/gemm/validate.h"
#include "tests/gemm_problem.h"

namespace blockscale::test {

struct PlainProblem {
  std::int64_t m = 20, n = 24, k = 96, batch = 1;
  Recipe a = Recipe::bf16, b = Recipe::nvfp4;
  ScaleLayout a_layout = ScaleLayout::row_major, b_layout = ScaleLayout::row_major;
  Format d = Format::f32;
  InputFamily family = InputFamily::adversarial;
  float alpha = 1, beta = 0;
  bool in_place = false;  // C is D, and C's own memory what it was
  bool bias = false, gate = false, alpha_factor = false;
  TensorScaleSense sense = TensorScaleSense::divisor;
  bool b_shared = false;           // one B for all matrices
  std::int64_t extra_columns = 0;  // of D and C, between rows
  std::int64_t odd_bytes = 0;      // before A's and B's values
  std::int64_t extra_bytes = 0;    // between their rows; of whole elements
  std::int64_t a_odd_bytes = 0;    // more of both, of A alone
  bool exact = false;              // integers from 0 to 8, scales from 1/8 to 8
  bool batch_invariant = false;
  bool fast_accumulation = false;
  QuantizeInput transform = Identity{};

  std::int64_t d_columns() const { return std::holds_alternative<Swiglu>(transform) ? n / 2 : n; }
  std::string str() const {
    return std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k) + " batch " +
           std::to_string(batch) + " " + recipe_traits(a).name + " " +
           scale_layout_traits(a_layout).name + " x " + recipe_traits(b).name + " " +
           scale_layout_traits(b_layout).name + " to " + format_traits(d).name;
  }
};

inline PlainProblem problem_of(Recipe a, Recipe b, std::int64_t m, std::int64_t n, std::int64_t k) {
  PlainProblem p;
  p.a = a;
  p.b = b;
  p.m = m;
  p.n = n;
  p.k = k;
  return p;
}

/// Problems with all that an epilogue does, for each type of D and each sense of a tensor scale: D
/// with and without columns between rows, and an odd number of its own. Recipes, m and k are the
/// body's, and n is `n` or one more.
template <class Body>
void for_each_epilogue(std::int64_t n, const Body& body) {
  for (const Format d : {Format::bf16, Format::f16, Format::f32}) {
    for (const std::int64_t extra : {0, 1, 2}) {
      for (const TensorScaleSense sense :
           {TensorScaleSense::multiplier, TensorScaleSense::divisor}) {
        PlainProblem p;
        p.n = extra == 1 ? n + 1 : n;
        p.batch = 2;
        p.b_shared = extra == 2;
        p.d = d;
        p.family = InputFamily::normal;
        p.extra_columns = extra;
        p.alpha = -0.01f;
        p.alpha_factor = true;
        p.beta = 2;
        p.bias = true;
        p.gate = extra != 0;
        p.sense = sense;
        body(p);
      }
    }
  }
}

/// Pairs of bf16 or f16 with weights in FP4.
template <class Body>
void for_each_fp4_pair(const Body& body) {
  for (const Recipe b : {Recipe::nvfp4, Recipe::mxfp4}) {
    for (const Recipe a : {Recipe::bf16, Recipe::f16}) body(a, b);
  }
}

/// Whether a recipe has elements of eight bits, and scales for each 128 or 32 of k.
inline bool has_scales_of_k(Recipe recipe) {
  const RecipeTraits& t = recipe_traits(recipe);
  return format_traits(t.element).bits == 8 && t.block_k != 0;
}

/// And these are powers of two.
inline bool has_powers_of_two_of_k(Recipe recipe) {
  const RecipeTraits& t = recipe_traits(recipe);
  return has_scales_of_k(recipe) && (t.power_of_two || t.scale == Format::ue8m0);
}

/// Rows in the largest tile of a converted A: sums that are promoted leave no room for 256.
inline int most_tokens_of(Recipe recipe) {
  return has_scales_of_k(recipe) && !has_powers_of_two_of_k(recipe) ? 128 : 256;
}

/// Pairs of which kernels of many rows with weights in FP4 take A in bf16, where it is converted,
/// but for A's other blocks of FP8.
template <class Body>
void for_each_converted_pair(const Body& body) {
  for (const Recipe a :
       {Recipe::fp8_row, Recipe::fp8_tensor, Recipe::fp8_tensor_e5m2, Recipe::fp8_1x128,
        Recipe::fp8_128x128, Recipe::fp8_1x128_ue8m0, Recipe::mxfp8_e4m3, Recipe::mxfp8_e5m2}) {
    for (const Recipe b : {Recipe::nvfp4, Recipe::mxfp4}) body(a, b);
  }
  for (const Recipe both : {Recipe::nvfp4, Recipe::mxfp4}) body(both, both);
}

/// Pairs of which kernels of many rows take B in 16 bits, as it is or where it is converted, but
/// for A's other recipes of one scale.
template <class Body>
void for_each_16_bit_tiles_pair(const Body& body) {
  body(Recipe::bf16, Recipe::bf16);
  body(Recipe::f16, Recipe::f16);
  for (const Recipe b :
       {Recipe::mxfp6_e2m3, Recipe::mxfp6_e3m2, Recipe::mxfp8_e4m3, Recipe::mxfp8_e5m2}) {
    body(Recipe::bf16, b);
  }
  body(Recipe::fp8_row, Recipe::mxfp8_e4m3);
  body(Recipe::fp8_tensor_e5m2, Recipe::mxfp6_e3m2);
  body(Recipe::mxfp6_e2m3, Recipe::mxfp6_e2m3);
}

/// The pairs that kernels of few rows with weights in FP4 and MXFP8 take, but for A's other recipes
/// of FP8.
template <class Body>
void for_each_few_rows_pair(const Body& body) {
  for_each_fp4_pair(body);
  for (const Recipe b : {Recipe::mxfp8_e4m3, Recipe::mxfp8_e5m2}) {
    for (const Recipe a : {Recipe::bf16, Recipe::f16}) body(a, b);
  }
  for (const Recipe b : {Recipe::nvfp4, Recipe::mxfp4}) {
    for (const Recipe a : {Recipe::fp8_row, Recipe::fp8_1x128}) body(a, b);
  }
}

/// Memory that begins so many bytes behind a multiple of 32.
class OddCopy {
 public:
  OddCopy(const void* data, std::int64_t bytes, std::int64_t odd) : bytes_(bytes), odd_(odd) {
    storage_.resize(static_cast<std::size_t>(bytes + odd) + 32);
    if (bytes != 0) std::memcpy(at(), data, static_cast<std::size_t>(bytes));
  }
  std::uint8_t* at() {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    return storage_.data() + (32 - address % 32) % 32 + odd_;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(bytes_); }

 private:
  std::int64_t bytes_, odd_;
  std::vector<std::uint8_t> storage_;
};

/// From a view's first value, or scale, to its last.
inline std::int64_t extent_of_values(const ScaledTensorView& x) {
  if (x.rows == 0 || x.k == 0 || x.batch == 0) return 0;
  return (x.batch - 1) * x.value_batch_stride + (x.rows - 1) * x.value_row_stride +
         row_bytes(x.recipe, x.k);
}
inline std::int64_t extent_of_scales(const ScaledTensorView& x) {
  const ScaleGrid grid = scale_grid(x.recipe, x.rows, x.k);
  if (grid.rows == 0 || grid.columns == 0 || x.batch == 0) return 0;
  return ((x.batch - 1) * x.scale_batch_stride +
          scale_count(x.layout, grid.rows, grid.columns, x.scale_leading_stride)) *
         (format_traits(recipe_traits(x.recipe).scale).bits / 8);
}

/// Scales that are 1/8 to 8, and elements that are integers from 0 to 8 as far as their type has
/// them: sums of their products are exact.
inline void make_exact(Random& random, TestOperand& operand) {
  const MutableScaledTensorView x = operand.mutable_view();
  const RecipeTraits& t = recipe_traits(x.recipe);
  const Format element = t.element;
  const auto most = static_cast<std::int64_t>(std::min(8.0, double{format_traits(element).max}));
  for (std::int64_t row = 0; row < x.batch * x.rows; ++row) {
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(row_bytes(x.recipe, x.k)));
    for (std::int64_t k = 0; k < x.k; ++k) {
      store_number(packed, element, k,
                   encode(element, static_cast<float>(uniform(random, 0, most))));
    }
    std::memcpy(static_cast<std::uint8_t*>(x.values) + row / x.rows * x.value_batch_stride +
                    row % x.rows * x.value_row_stride,
                packed.data(), packed.size());
  }
  const ScaleGrid grid = scale_grid(x.recipe, x.rows, x.k);
  for (std::int64_t i = 0; i < grid.rows; ++i) {
    for (std::int64_t j = 0; j < grid.columns; ++j) {
      const float scale = std::exp2(static_cast<float>(uniform(random, -3, 3)));
      operand.set_scale(i, j,
                        t.scale == Format::ue8m0 ? encode_ue8m0(scale, ScaleRounding::toward_zero)
                                                 : encode(t.scale, scale));
    }
  }
}

/// A problem's operands and results, and the arguments that point to them.
class PlainOperands {
 public:
  explicit PlainOperands(const PlainProblem& p)
      : random_(static_cast<std::uint64_t>(p.m * 31 + p.n * 7 + p.k) +
                static_cast<std::uint64_t>(p.a) * 100 + static_cast<std::uint64_t>(p.b)),
        a_(random_, p.a, p.m, p.k, p.family, options(p, p.a_layout, p.batch, p.a_odd_bytes)),
        b_(random_, p.b, p.n, p.k, family_of_b(p),
           options(p, p.b_layout, p.b_shared ? 1 : p.batch)),
        c_(p.d, p.m, p.n, p.batch, p.extra_columns),
        d_(p.d, p.m, p.d_columns(), p.batch, p.extra_columns),
        bias_(Format::bf16, 1, p.n),
        gate_(Format::f16, 1, p.n) {
    if (p.exact) {
      make_exact(random_, a_);
      make_exact(random_, b_);
    }
    c_.fill(random_, InputFamily::normal);
    bias_.fill(random_, InputFamily::normal);
    gate_.fill(random_, InputFamily::normal);
    x_.a = a_.view();
    x_.b = b_.view();
    values_.emplace_back(x_.a.values, extent_of_values(x_.a), p.odd_bytes + p.a_odd_bytes);
    values_.emplace_back(x_.b.values, extent_of_values(x_.b), p.odd_bytes);
    x_.a.values = values_[0].at();
    x_.b.values = values_[1].at();
    if (p.exact) x_.a.tensor_scale = x_.b.tensor_scale = nullptr;
    x_.d = d_.view();
    x_.alpha = p.alpha;
    x_.beta = p.beta;
    if (p.in_place) d_.copy_elements_from(c_);
    if (p.beta != 0) x_.c = p.in_place ? d_.view() : c_.view();
    if (p.bias) x_.bias = bias_.view().data;
    x_.bias_dtype = Format::bf16;
    if (p.gate) x_.gate = gate_.view().data;
    x_.gate_dtype = Format::f16;
    if (p.alpha_factor) x_.alpha_factor = &factor_;
    x_.batch_invariant = p.batch_invariant;
    x_.fast_accumulation = p.fast_accumulation;
    x_.transform = p.transform;
    fresh_d_ = d_.bytes();
  }
  PlainOperands(const PlainOperands&) = delete;
  PlainOperands& operator=(const PlainOperands&) = delete;

  const GemmArguments& arguments() const { return x_; }
  /// With C as it was before a product in place.
  GemmArguments arguments_before() {
    GemmArguments x = x_;
    if (x.c.data != nullptr) x.c = c_.view();
    return x;
  }
  TestMatrix& d() { return d_; }
  const TestMatrix& c() const { return c_; }
  const TestMatrix& bias() const { return bias_; }
  const TestMatrix& gate() const { return gate_; }
  const float& factor() const { return factor_; }
  OddCopy& a_values() { return values_[0]; }
  OddCopy& b_values() { return values_[1]; }
  TestOperand& a() { return a_; }
  TestOperand& b() { return b_; }

  /// Gives both operands, which are in NVFP4, a tensor scale.
  void set_tensor_scales(float of_a, float of_b) {
    a_.set_tensor_scales(of_a);
    b_.set_tensor_scales(of_b);
    x_.a.tensor_scale = a_.view().tensor_scale;
    x_.b.tensor_scale = b_.view().tensor_scale;
  }
  /// The first rows of A and D alone.
  void set_rows(std::int64_t rows) { x_.a.rows = x_.d.rows = rows; }

  void poison_d() {
    std::memcpy(static_cast<std::uint8_t*>(x_.d.data) - TestMatrix::kGuard, fresh_d_.data(),
                fresh_d_.size());
  }

 private:
  /// Products of e5m2's largest numbers and of scales of 2^50 twice are none of f32.
  static InputFamily family_of_b(const PlainProblem& p) {
    const bool is_large = p.a == Recipe::mxfp8_e5m2 && p.b == Recipe::mxfp8_e5m2;
    return is_large && p.family == InputFamily::adversarial ? InputFamily::normal : p.family;
  }
  static OperandOptions options(const PlainProblem& p, ScaleLayout layout, std::int64_t batch,
                                std::int64_t odd_bytes = 0) {
    OperandOptions o;
    o.layout = layout;
    o.batch = batch;
    o.extra_row_bytes = p.extra_bytes + odd_bytes;
    o.sense = p.sense;
    o.smallest_scales = false;  // products of sums and scales are f32 numbers
    return o;
  }

  Random random_;
  TestOperand a_, b_;
  TestMatrix c_, d_, bias_, gate_;
  std::vector<OddCopy> values_;
  float factor_ = 0.375f;
  GemmArguments x_;
  std::vector<std::uint8_t> fresh_d_;
};

/// Gives A's element (row, k) the number, or the nearest that its type has.
inline void set_a(PlainOperands& operands, std::int64_t row, std::int64_t k, float number) {
  const ScaledTensorView& a = operands.arguments().a;
  const Format format = recipe_traits(a.recipe).element;
  const std::uint32_t code = encode(format, number, Overflow::propagate);
  const std::int64_t bytes = format_traits(format).bits / 8;
  for (std::int64_t i = 0; i < bytes; ++i) {
    operands.a_values().at()[row * a.value_row_stride + k * bytes + i] =
        static_cast<std::uint8_t>(code >> (8 * i));
  }
}

/// Gives a row of B numbers of MXFP8 that bf16 lacks, and A such that sums are exact.
inline void lose_a_row(PlainOperands& operands, std::int64_t row) {
  const GemmArguments& x = operands.arguments();
  std::uint8_t* const codes = operands.b_values().at() + row * x.b.value_row_stride;
  for (std::int64_t k = 0; k < x.a.k; ++k) codes[k] = static_cast<std::uint8_t>(k % 15 + 1);
  for (std::int64_t block = 0; block < x.a.k / 32; ++block) operands.b().set_scale(row, block, 0);
  for (std::int64_t m = 0; m < x.d.rows; ++m) {
    for (std::int64_t k = 0; k < x.a.k; ++k) {
      set_a(operands, m, k, std::ldexp(static_cast<float>((m + k) % 9 - 4), 20));
    }
  }
}

/// body(a, b) of every pair that gemm computes.
template <class Body>
void for_each_pair(const Body& body) {
  for (const RecipeTraits& a : kRecipes) {
    for (const RecipeTraits& b : kRecipes) {
      if (gemm_supports(a.recipe, b.recipe)) body(a.recipe, b.recipe);
    }
  }
}

/// The layouts that hold a recipe's scales.
inline std::vector<ScaleLayout> layouts_of(Recipe recipe) {
  using enum ScaleLayout;
  if (is_plain(recipe)) return {row_major};
  if (!has_swizzled_scales(recipe_traits(recipe))) return {row_major, mn_major};
  return {row_major, mn_major, swizzled_128x4, swizzled_8x4};
}

}  // namespace blockscale::test
