// Rows of A that an index names, rows of D that go elsewhere, times weights, added or quantized.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "blockscale/grouped_gemm.h"
#include "ops/grouped_gemm/test/grouped_problem.h"

namespace blockscale {
namespace {

using test::GroupedProblem;
using test::InputFamily;
using test::OperandOptions;
using test::Random;
using test::TestMatrix;

constexpr std::int64_t kRowsOfA = 140, kM = 60, kN = 128, kK = 160, kGroups = 4;
const std::vector<std::int32_t> kOffsets = {2, 19, 19, 52, 58};

struct Pair {
  Recipe a, b;
  ScaleLayout layout_a = ScaleLayout::row_major;
};
constexpr Pair kPairs[] = {
    {Recipe::bf16, Recipe::bf16},
    {Recipe::bf16, Recipe::nvfp4},
    {Recipe::fp8_tensor, Recipe::fp8_tensor},
    {Recipe::fp8_row, Recipe::fp8_row},
    {Recipe::fp8_1x128, Recipe::fp8_128x128},
    {Recipe::fp8_1x128, Recipe::fp8_128x128, ScaleLayout::mn_major},
    {Recipe::fp8_128x128_pow2, Recipe::fp8_1x128},
    {Recipe::fp8_32x128_ue8m0, Recipe::fp8_128x128_ue8m0, ScaleLayout::mn_major},
    {Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3, ScaleLayout::swizzled_128x4},
    {Recipe::mxfp6_e3m2, Recipe::mxfp6_e3m2},
    {Recipe::mxfp4, Recipe::mxfp4, ScaleLayout::swizzled_8x4},
    {Recipe::nvfp4, Recipe::nvfp4, ScaleLayout::swizzled_128x4},
};

/// Groups of kOffsets, and more rows of A than they have.
class Problem : public GroupedProblem {
 public:
  Problem(Random& random, const Pair& pair, InputFamily family = InputFamily::normal)
      : GroupedProblem(random, pair.a, pair.b, {kGroups, kRowsOfA, kN, kK}, family,
                       {.layout = pair.layout_a, .extra_row_bytes = 8}) {
    set_offsets(kOffsets);
    use_factors();
    use_bias();
  }
};

/// Any rows of A, some more than once, and some that it does not have.
std::vector<std::int32_t> random_index(Random& random) {
  std::vector<std::int32_t> index(kM);
  for (std::int32_t& i : index) {
    i = static_cast<std::int32_t>(test::uniform(random, -20, kRowsOfA + 20));
  }
  index[3] = index[20] = std::numeric_limits<std::int32_t>::min();
  index[5] = index[21] = std::numeric_limits<std::int32_t>::max();
  return index;
}

/// D in f32, [kM, kN], of the rows of groups; poison elsewhere.
std::vector<float> rows_in_f32(GroupedGemmArguments x) {
  std::vector<float> rows(kM * kN, -12345.0f);
  x.transform = Identity{};
  for (std::int64_t g = 0; g < kGroups; ++g) {
    const test::Cut cut = test::cut_rows(x, g, kM);
    if (cut.begin == cut.end) continue;
    test::multiply_group(x, g, cut,
                         {rows.data() + cut.begin * kN, Format::f32, cut.end - cut.begin, kN});
  }
  return rows;
}

bool is_in_group(std::int64_t row) {
  return row >= kOffsets.front() && row < kOffsets.back();
}

TEST(GatheredRows, HaveTheBitsOfGemm) {
  Random random(1);
  for (const Pair& pair : kPairs) {
    for (const InputFamily family : {InputFamily::normal, InputFamily::adversarial}) {
      Problem problem(random, pair, family);
      const std::vector<std::int32_t> index = random_index(random);
      GroupedGemmArguments x = problem.x();
      x.index = index.data();
      x.rows = kM;
      for (const int threads : {1, 2, 5}) {
        TestMatrix d(Format::bf16, kM, kN, 1, 5), expected(Format::bf16, kM, kN, 1, 5);
        for (std::int64_t g = 0; g < kGroups; ++g) {
          const test::Cut cut = test::cut_rows(x, g, kM);
          MutableMatrixView to = expected.view();
          to.rows = cut.end - cut.begin;
          to.data = static_cast<std::uint16_t*>(to.data) + cut.begin * to.row_stride;
          if (to.rows > 0) test::multiply_group(x, g, cut, to);
        }
        x.d = d.view();
        grouped_gemm(x, {threads});
        EXPECT_EQ(d.bytes(), expected.bytes()) << recipe_traits(pair.a).name;
      }
    }
  }
}

/// Whatever scales and codes lie beside what the index names.
TEST(GatheredRows, ThatAreNoRowsAreZeros) {
  Random random(2);
  for (const Pair& pair : kPairs) {
    Problem problem(random, pair);
    GroupedGemmArguments x = problem.x();
    const std::vector<std::int32_t> index(kM, -1);
    std::vector<float> d(kM * kN, 7.0f);
    x.bias = nullptr;
    x.index = index.data();
    x.rows = kM;
    x.d = {d.data(), Format::f32, kM, kN};
    grouped_gemm(x, {2});
    for (std::int64_t i = 0; i < kM * kN; ++i) {
      ASSERT_EQ(d[static_cast<std::size_t>(i)], is_in_group(i / kN) ? 0.0f : 7.0f);
    }
  }
}

TEST(GatheredRows, OfAnEmptyAAreZeros) {
  for (const Recipe recipe : {Recipe::fp8_tensor, Recipe::fp8_row, Recipe::nvfp4, Recipe::bf16}) {
    Random random(7);
    GroupedProblem problem(random, recipe, recipe, {1, 0, 64, 64}, InputFamily::normal);
    problem.set_offsets({0, 3});
    const std::vector<std::int32_t> index = {0, -1, 5};
    std::vector<float> d(3 * 64, 7.0f);
    GroupedGemmArguments x = problem.x();
    x.a.scales = nullptr;
    x.index = index.data();
    x.rows = 3;
    x.d = {d.data(), Format::f32, 3, 64};
    grouped_gemm(x, {2});
    EXPECT_EQ(d, std::vector<float>(3 * 64, 0.0f)) << recipe_traits(recipe).name;
  }
}

class ScatteredRows : public testing::Test {
 protected:
  ScatteredRows() {
    x_ = problem_.x();
    x_.index = index_.data();
    x_.rows = kM;
    x_.destinations = destinations_.data();
    for (std::int32_t& row : destinations_) {
      row = static_cast<std::int32_t>(test::uniform(random_, -4, kRowsOfD + 4));
    }
    for (float& weight : weights_) {
      weight = static_cast<float>(test::uniform_real(random_, -2, 2));
    }
    d_ = std::vector<float>(kRowsOfD * kN, 0.5f);
  }

  /// Stores rows_in_f32() as the contract says.
  std::vector<float> expected() {
    const std::vector<float> rows = rows_in_f32(x_);
    std::vector<float> d(kRowsOfD * kN, 0.5f);
    for (std::int64_t r = 0; r < kM; ++r) {
      const auto i = static_cast<std::size_t>(r);
      const std::int64_t to = destinations_[i];
      if (!is_in_group(r) || to < 0 || to >= kRowsOfD) continue;
      for (std::int64_t c = 0; c < kN; ++c) {
        float value = rows[static_cast<std::size_t>(r * kN + c)];
        if (x_.weights != nullptr) value *= weights_[i];
        float& element = d[static_cast<std::size_t>(to * kN + c)];
        element = x_.adds ? element + value : value;
      }
    }
    return d;
  }

  static constexpr std::int64_t kRowsOfD = 25;  // fewer than rows go there
  Random random_{3};
  Problem problem_{random_, {Recipe::mxfp8_e4m3, Recipe::mxfp4}};
  std::vector<std::int32_t> index_ = random_index(random_);
  std::vector<std::int32_t> destinations_ = std::vector<std::int32_t>(kM);
  std::vector<float> weights_ = std::vector<float>(kM);
  std::vector<float> d_;
  GroupedGemmArguments x_;
};

TEST_F(ScatteredRows, GoWhereDestinationsSay) {
  for (const bool weighs : {false, true}) {
    x_.weights = weighs ? weights_.data() : nullptr;
    for (const bool adds : {false, true}) {
      x_.adds = adds;
      const std::vector<float> all = expected();
      for (const int threads : {1, 2, 5}) {
        std::vector<float> d = d_;
        x_.d = {d.data(), Format::f32, kRowsOfD, kN};
        grouped_gemm(x_, {threads});
        EXPECT_EQ(d, all) << adds << threads;
      }
    }
  }
}

TEST_F(ScatteredRows, AreRoundedBeforeAndAfterTheyAreAdded) {
  x_.adds = true;
  x_.weights = weights_.data();
  const std::vector<float> rows = rows_in_f32(x_);
  for (const Format dtype : {Format::f16, Format::bf16}) {
    const auto rounded = [dtype](float value) {
      return static_cast<std::uint16_t>(encode(dtype, value, Overflow::propagate));
    };
    std::vector<std::uint16_t> d(kRowsOfD * kN, rounded(0.5f)), all = d;
    for (std::int64_t r = 0; r < kM; ++r) {
      const auto i = static_cast<std::size_t>(r);
      const std::int64_t to = destinations_[i];
      if (!is_in_group(r) || to < 0 || to >= kRowsOfD) continue;
      for (std::int64_t c = 0; c < kN; ++c) {
        std::uint16_t& element = all[static_cast<std::size_t>(to * kN + c)];
        const float row = rows[static_cast<std::size_t>(r * kN + c)] * weights_[i];
        element = rounded(decode(dtype, element) + decode(dtype, rounded(row)));
      }
    }
    x_.d = {d.data(), dtype, kRowsOfD, kN};
    grouped_gemm(x_);
    EXPECT_EQ(d, all) << format_traits(dtype).name;
  }
}

/// A row of two groups is added once.
TEST_F(ScatteredRows, OfTwoGroupsAreAddedOnce) {
  problem_.set_offsets({0, 10, 12, 40});
  problem_.set_lengths({30, 10, 20, 10});
  x_.offsets = problem_.x().offsets;
  x_.lengths = problem_.x().lengths;
  x_.adds = true;
  std::vector<float> rows(kM * kN), all = d_, d = d_;
  std::vector<bool> has_group(kM);
  for (std::int64_t g = 0; g < kGroups; ++g) {
    const test::Cut cut = test::cut_rows(x_, g, kM);
    test::multiply_group(x_, g, cut,
                         {rows.data() + cut.begin * kN, Format::f32, cut.end - cut.begin, kN});
    std::fill(has_group.begin() + cut.begin, has_group.begin() + cut.end, true);
  }
  std::vector<double> sums(all.begin(), all.end());
  for (std::int64_t r = 0; r < kM; ++r) {
    const std::int64_t to = destinations_[static_cast<std::size_t>(r)];
    if (!has_group[static_cast<std::size_t>(r)] || to < 0 || to >= kRowsOfD) continue;
    for (std::int64_t c = 0; c < kN; ++c) {
      sums[static_cast<std::size_t>(to * kN + c)] +=
          double{rows[static_cast<std::size_t>(r * kN + c)]};
    }
  }
  x_.d = {d.data(), Format::f32, kRowsOfD, kN};
  grouped_gemm(x_, {2});
  for (std::size_t i = 0; i < d.size(); ++i) {
    ASSERT_NEAR(double{d[i]}, sums[i], 1e-3 * std::max(1.0, std::abs(sums[i]))) << i;
  }
}

TEST_F(ScatteredRows, AreTransformedWeighedAndRoundedOnce) {
  const std::vector<float> rows = rows_in_f32(x_);
  x_.weights = weights_.data();
  x_.transform = Swiglu{};
  TestMatrix d(Format::bf16, kRowsOfD, kN / 2, 1, 3), all(Format::bf16, kRowsOfD, kN / 2, 1, 3);
  x_.d = d.view();
  grouped_gemm(x_, {2});
  // The transform in f32 is gemm's.
  std::vector<float> transformed(kM * kN / 2);
  for (std::int64_t g = 0; g < kGroups; ++g) {
    const test::Cut cut = test::cut_rows(x_, g, kM);
    if (cut.begin == cut.end) continue;
    test::multiply_group(
        x_, g, cut,
        {transformed.data() + cut.begin * kN / 2, Format::f32, cut.end - cut.begin, kN / 2});
  }
  const MutableMatrixView to = all.view();
  for (std::int64_t r = 0; r < kM; ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (!is_in_group(r) || destinations_[i] < 0 || destinations_[i] >= kRowsOfD) continue;
    for (std::int64_t c = 0; c < kN / 2; ++c) {
      const float value = transformed[static_cast<std::size_t>(r * kN / 2 + c)] * weights_[i];
      static_cast<std::uint16_t*>(to.data)[destinations_[i] * to.row_stride + c] =
          static_cast<std::uint16_t>(encode<Format::bf16>(value));
    }
  }
  EXPECT_EQ(d.bytes(), all.bytes());
}

/// Waves of rows, where D in f32 does not fit at once: rows keep the bits of all of their group.
TEST(RowsOfManyWaves, HaveTheSameBits) {
  constexpr std::int64_t kWide = 8192, kTall = 1100;  // 512 rows a wave
  Random random(4);
  GroupedProblem problem(random, Recipe::nvfp4, Recipe::nvfp4, {3, kTall, kWide, 64},
                         InputFamily::normal);
  problem.set_offsets({1, 514, 1027, 1100});  // the last row of a group is a wave's only one of it
  std::vector<std::int32_t> index(kTall);
  for (std::int64_t r = 0; r < kTall; ++r) {
    index[static_cast<std::size_t>(r)] = static_cast<std::int32_t>((r * 7) % kTall);
  }
  GroupedGemmArguments x = problem.x();
  std::vector<float> direct(kTall * kWide, -1.0f), gathered = direct;
  x.index = index.data();
  x.rows = kTall;
  x.d = {direct.data(), Format::f32, kTall, kWide};
  grouped_gemm(x);
  std::vector<std::int32_t> destinations(kTall);
  for (std::int64_t r = 0; r < kTall; ++r) {
    destinations[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(kTall - 1 - r);
  }
  x.destinations = destinations.data();
  x.d.data = gathered.data();
  grouped_gemm(x);
  for (std::int64_t r = 0; r < kTall; ++r) {
    ASSERT_TRUE(std::equal(direct.begin() + r * kWide, direct.begin() + (r + 1) * kWide,
                           gathered.begin() + (kTall - 1 - r) * kWide))
        << r;
  }
}

/// A quantized result whose memory is 0xA5 wherever nothing was written.
class PoisonedTensor {
 public:
  PoisonedTensor(Recipe recipe, std::int64_t rows, std::int64_t k, ScaleLayout layout,
                 std::int64_t batch)
      : tensor_(recipe, rows, k, layout, batch) {
    const MutableScaledTensorView x = view();
    std::memset(x.values, 0xA5, static_cast<std::size_t>(value_bytes(recipe, rows, k, batch)));
    std::memset(x.scales, 0xA5,
                static_cast<std::size_t>(scale_bytes(recipe, layout, rows, k, batch)));
  }
  MutableScaledTensorView view() { return tensor_.view(); }

  /// Codes and scales of a row, one behind the other.
  std::vector<std::uint8_t> row(std::int64_t matrix, std::int64_t r) {
    const ScaledTensorView x = resolved(ScaledTensorView(view()), "x");
    const std::int64_t size = format_traits(recipe_traits(x.recipe).scale).bits / 8;
    const auto* const values = static_cast<const std::uint8_t*>(x.values) +
                               matrix * x.value_batch_stride + r * x.value_row_stride;
    std::vector<std::uint8_t> bytes(values, values + row_bytes(x.recipe, x.k));
    for (std::int64_t j = 0; j < scale_grid(x.recipe, x.rows, x.k).columns; ++j) {
      const auto* const scale =
          static_cast<const std::uint8_t*>(x.scales) +
          (matrix * x.scale_batch_stride + scale_offset(x.layout, r, j, x.scale_leading_stride)) *
              size;
      bytes.insert(bytes.end(), scale, scale + size);
    }
    return bytes;
  }

 private:
  ScaledTensor tensor_;
};

struct QuantizedCase {
  Recipe recipe;
  ScaleLayout layout;
};
constexpr QuantizedCase kQuantizedCases[] = {
    {Recipe::fp8_1x128, ScaleLayout::mn_major},
    {Recipe::fp8_1x128_ue8m0, ScaleLayout::swizzled_128x4},
    {Recipe::fp8_row, ScaleLayout::row_major},
    {Recipe::mxfp8_e4m3, ScaleLayout::swizzled_8x4},
    {Recipe::nvfp4, ScaleLayout::swizzled_128x4},
};

class QuantizedRows : public testing::TestWithParam<QuantizedCase> {
 protected:
  /// Compares rows with quantize() of D in f32, and the others with poison.
  void expect_rows(GroupedProblem& problem, const QuantizeInput& input, bool is_masked) {
    const QuantizedCase& c = GetParam();
    const std::int64_t columns = std::holds_alternative<Swiglu>(input) ? kN / 2 : kN;
    const std::int64_t rows = problem.x().a.rows, batch = is_masked ? kGroups : 1;
    PoisonedTensor out(c.recipe, rows, columns, c.layout, batch);
    std::vector<float> scales = {2.0f, 0.5f, 1.5f, 3.0f};
    GroupedGemmArguments x = problem.x();
    x.quantized = {out.view()};
    x.quantized->options.input = input;
    const bool has_tensor_scale = c.recipe == Recipe::nvfp4;
    if (has_tensor_scale) {
      x.quantized->options.scale_source = ScaleSource::given;
      x.quantized->out.tensor_scale = scales.data();
      x.quantized->out.tensor_scale_batch_stride = is_masked ? 1 : 0;
    }
    grouped_gemm(x, {2});
    const std::vector<std::uint8_t> poison(out.row(0, 0).size(), 0xA5);
    for (std::int64_t g = 0; g < batch; ++g) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const bool is_written = is_masked ? r < x.lengths[g] : is_in_group(r);
        if (!is_written) {
          EXPECT_EQ(out.row(g, r), poison) << g << ", " << r;
        }
      }
    }
    for (std::int64_t g = 0; g < kGroups; ++g) {
      const test::Cut cut = test::cut_rows(x, g, rows);
      const std::int64_t count = cut.end - cut.begin, matrix = is_masked ? g : 0;
      if (count == 0) continue;
      std::vector<float> d(static_cast<std::size_t>(count * kN));
      test::multiply_group(x, g, cut, {d.data(), Format::f32, count, kN});
      PoisonedTensor expected(c.recipe, count, columns, ScaleLayout::row_major, 1);
      MutableScaledTensorView view = expected.view();
      if (has_tensor_scale) *view.tensor_scale = scales[static_cast<std::size_t>(matrix)];
      quantize({d.data(), Format::f32, count, kN}, view, x.quantized->options);
      for (std::int64_t r = 0; r < count; ++r) {
        EXPECT_EQ(out.row(matrix, cut.begin + r), expected.row(0, r)) << g << ", " << r;
      }
    }
  }
};

TEST_P(QuantizedRows, AreWhatQuantizeMakesOfThem) {
  Random random(5);
  Problem problem(random, {Recipe::fp8_1x128, Recipe::fp8_128x128});
  for (const QuantizeInput& input :
       {QuantizeInput{Identity{}}, QuantizeInput{Gelu{}}, QuantizeInput{Swiglu{}}}) {
    expect_rows(problem, input, false);
  }
}

TEST_P(QuantizedRows, OfMaskedGroups) {
  Random random(6);
  OperandOptions of_a;
  of_a.batch = kGroups;
  GroupedProblem problem(random, Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3, {kGroups, 40, kN, kK},
                         InputFamily::normal, of_a);
  problem.set_lengths({17, 0, 40, 3});
  expect_rows(problem, Identity{}, true);
  expect_rows(problem, Swiglu{}, true);
}

INSTANTIATE_TEST_SUITE_P(Cases, QuantizedRows, testing::ValuesIn(kQuantizedCases),
                         [](const auto& parameter) {
                           return std::string(recipe_traits(parameter.param.recipe).name);
                         });

}  // namespace
}  // namespace blockscale
