// The error bounds of products that take scales, held against the rule by which sm_120f adds
// (device/emulator/meaning/scaled_mma.h): usual data, and what is near the worst.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>

#include "device/emulator/meaning/scaled_mma.h"
#include "ops/gemm/error_bound.h"
#include "tests/gemm_problem.h"

namespace blockscale {
namespace {

using emulator::meaning::ScaledMma;
using gemm_detail::ErrorLimit;
using gemm_detail::GemmPath;
using gemm_detail::ReferenceElement;
using test::Random;

constexpr std::size_t kRows = emulator::meaning::kMmaRows;
constexpr std::size_t kColumns = emulator::meaning::kMmaColumns;

/// Sums of a chain of instructions for a tile of 16 x 8, and what is exact.
class Chain {
 public:
  Chain(Recipe a, Recipe b) : recipes_{a, b} {
    const RecipeTraits& t = recipe_traits(a);
    form_.a = t.element;
    form_.b = recipe_traits(b).element;
    form_.scales = t.element != Format::e2m1 ? 1 : t.scale == Format::ue4m3 ? 4 : 2;
  }

  std::size_t depth() const { return form_.scales > 1 ? 64 : 32; }
  Recipe recipe(bool of_b) const { return recipes_[of_b]; }

  /// One instruction, whose elements and scales are number(of B, row, k) and scale(of B, row,
  /// block), or the nearest that there are.
  template <class Number, class Scale>
  void add(const Number& number, const Scale& scale) {
    std::array<std::array<double, 64>, kRows + kColumns> values{};
    for (std::size_t i = 0; i < kRows + kColumns; ++i) {
      const bool of_b = i >= kRows;
      const std::size_t row = of_b ? i - kRows : i;
      const Format element = of_b ? form_.b : form_.a;
      std::array<std::uint8_t, 32> bytes{};
      std::uint32_t word = 0;
      for (std::size_t k = 0; k < depth(); ++k) {
        const std::uint32_t code = encode(element, static_cast<float>(number(of_b, row, k)));
        if (form_.scales > 1) {
          bytes[k / 2] = static_cast<std::uint8_t>(bytes[k / 2] | code << (k % 2 * 4));
        } else {
          bytes[k] = static_cast<std::uint8_t>(code << emulator::meaning::element_shift(element));
        }
        values[i][k] = double{decode(element, code)};
      }
      const Format of_scales = scale_format_of(form_);
      for (std::size_t block = 0; block < form_.scales; ++block) {
        const float number_of_scale = static_cast<float>(scale(of_b, row, block));
        const std::uint32_t code = of_scales == Format::ue8m0
                                       ? encode_ue8m0(number_of_scale, ScaleRounding::toward_zero)
                                       : encode(of_scales, number_of_scale);
        word |= code << (8 * block);
        const std::size_t first = block * depth() / form_.scales;
        for (std::size_t k = first; k < first + depth() / form_.scales; ++k) {
          values[i][k] *= double{decode(of_scales, code)};
        }
      }
      put(of_b, static_cast<std::uint32_t>(row), bytes, word);
    }
    scaled_mma(form_, fragments_);
    for (std::size_t row = 0; row < kRows; ++row) {
      for (std::size_t column = 0; column < kColumns; ++column) {
        ReferenceElement& exact = exact_[row][column];
        for (std::size_t k = 0; k < depth(); ++k) {
          const double product = values[row][k] * values[kRows + column][k];
          exact.value += product;
          exact.magnitude += std::abs(product);
        }
      }
    }
  }

  /// visit(error in units of 2^-24 of the magnitude, what is exact) of each sum.
  template <class Visit>
  void for_each_error(const Visit& visit) const {
    for (std::uint32_t lane = 0; lane < emulator::meaning::kMmaLanes; ++lane) {
      for (std::uint32_t i = 0; i < 4; ++i) {
        const auto at = emulator::meaning::mma_place_of_d(lane, i);
        const ReferenceElement& exact = exact_[at.row][at.column];
        visit(std::abs(double{fragments_.values.d[lane][i]} - exact.value) /
                  (exact.magnitude * 0x1p-24),
              exact);
      }
    }
  }

 private:
  void put(bool of_b, std::uint32_t row, const std::array<std::uint8_t, 32>& bytes,
           std::uint32_t scales) {
    using namespace emulator::meaning;
    const auto word = [&](std::uint32_t first) {
      std::uint32_t value = 0;
      for (std::uint32_t j = 0; j < 4; ++j) value |= std::uint32_t{bytes[first + j]} << (8 * j);
      return value;
    };
    for (std::uint32_t lane = 0; lane < kMmaLanes; ++lane) {
      for (std::uint32_t i = 0; i < (of_b ? 2u : 4u); ++i) {
        const MmaPlace at = of_b ? mma_place_of_b(lane, i) : mma_place_of_a(lane, i);
        if (at.row != row) continue;
        (of_b ? fragments_.values.b[lane][i] : fragments_.values.a[lane][i]) = word(at.column);
      }
    }
    (of_b ? fragments_.scales_b[scale_lane_of_b(row, 0)]
          : fragments_.scales_a[scale_lane_of_a(row, 0)]) = scales;
  }

  std::array<Recipe, 2> recipes_;
  ScaledMma form_;
  emulator::meaning::ScaledMmaFragments fragments_{};
  std::array<std::array<ReferenceElement, kColumns>, kRows> exact_{};
};

constexpr std::array<Recipe, 2> kPairs[] = {{Recipe::nvfp4, Recipe::nvfp4},
                                            {Recipe::mxfp4, Recipe::mxfp4},
                                            {Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3},
                                            {Recipe::mxfp8_e4m3, Recipe::mxfp4}};

/// Chains of K up to 16384 with outliers, and without.
TEST(UsualError, OfBlockScaledHoldsForUsualData) {
  Random random(35);
  const ErrorLimit usual = gemm_detail::usual_error(GemmPath::sm120_block_scaled);
  double largest = 0;
  for (const auto& [a, b] : kPairs) {
    for (const bool positive : {false, true}) {
      for (const double outlier : {1.0, 30.0}) {
        for (const std::int64_t k : {64, 1024, 16384}) {
          Chain chain(a, b);
          for (std::int64_t first = 0; first < k;
               first += static_cast<std::int64_t>(chain.depth())) {
            chain.add(
                [&](bool of_b, std::size_t, std::size_t) {
                  const Format element = recipe_traits(chain.recipe(of_b)).element;
                  const double x = test::normal_real(random) * format_traits(element).max / 4;
                  return (positive ? std::abs(x) : x) *
                         (!of_b && test::chance(random, 1.0 / 64) ? outlier : 1);
                },
                [&](bool, std::size_t, std::size_t) {
                  return std::exp2(test::uniform_real(random, -1.5, 1.5));
                });
          }
          chain.for_each_error([&](double error, const ReferenceElement& exact) {
            largest = std::max(largest, error / usual(exact));
          });
        }
      }
    }
  }
  EXPECT_LE(largest, 1);
  EXPECT_GE(largest, 0.25);
}

/// What a chain lost of (row 0, column 0), whose operands have number(instruction, of B, k) and
/// scale(instruction, of B) in all rows.
template <class Number, class Scale>
double error_of(Chain chain, int instructions, const Number& number, const Scale& scale) {
  for (int i = 0; i < instructions; ++i) {
    chain.add([&](bool of_b, std::size_t, std::size_t k) { return number(i, of_b, k); },
              [&](bool of_b, std::size_t, std::size_t) { return scale(i, of_b); });
  }
  double largest = 0;
  chain.for_each_error([&](double error, const ReferenceElement&) { largest = error; });
  return largest;
}

double proven_of_mxfp8(int instructions) {
  return gemm_detail::proven_error(GemmPath::sm120_block_scaled, Recipe::mxfp8_e4m3,
                                   Recipe::mxfp8_e4m3, 32 * instructions);
}

/// Products that are cut off whole, by all instructions behind a large one: nearly all that the
/// bound allows for them.
TEST(ProvenError, OfBlockScaledHoldsForProductsThatAreCutOff) {
  constexpr int kInstructions = 40;
  const double error = error_of(
      Chain(Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3), kInstructions + 1,
      [](int i, bool of_b, std::size_t k) {
        if (i == 0) return k == 0 ? 256.0 : 0.0;  // 2^16, which cuts behind 2^-9
        return of_b ? 15 * 0x1p-9 : 0x1p-4;
      },
      [](int, bool) { return 1.0; });
  EXPECT_GT(error, 14.5 * kInstructions);
  EXPECT_LE(error, proven_of_mxfp8(kInstructions + 1));
}

/// A product of subnormal numbers leads with 2^6 times its magnitude, and cuts the sum before.
TEST(ProvenError, OfBlockScaledHoldsWhereSubnormalNumbersLead) {
  const double error = error_of(
      Chain(Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3), 2,
      [](int i, bool of_b, std::size_t k) {
        if (k != 0) return 0.0;
        return i == 0 ? (of_b ? 1.875 : 1.0) : 0x1p-9;
      },
      [](int i, bool) { return i == 0 ? 0x1p-19 : 1.0; });
  EXPECT_GT(error, 29);
  EXPECT_LE(error, proven_of_mxfp8(2));
  EXPECT_LT(proven_of_mxfp8(2), 90);
}

/// The constants of docs/numerics.md by its formulas.
TEST(ProvenError, OfBlockScaledGrowsWithK) {
  const auto proven = [](Recipe a, Recipe b) {
    return gemm_detail::proven_error(GemmPath::sm120_block_scaled, a, b, 4096);
  };
  EXPECT_NEAR(proven(Recipe::nvfp4, Recipe::nvfp4), 64 * (2 + 0x1p-9) + 0.5 + 16, 0.01);
  EXPECT_NEAR(proven(Recipe::mxfp8_e4m3, Recipe::mxfp8_e4m3), 18 * 128 + 32 + 16, 0.01);
  EXPECT_NEAR(proven(Recipe::mxfp8_e4m3, Recipe::mxfp4), 18 * 128 + 8 + 16, 0.01);
  EXPECT_NEAR(proven(Recipe::fp8_1x128, Recipe::fp8_128x128), 18 * 4 + 32 + 32 + 16, 0.01);
}

}  // namespace
}  // namespace blockscale
