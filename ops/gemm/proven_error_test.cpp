// The proven error bounds of tensor cores, held against the rules by which they add (recorded on an
// H100, device/emulator/meaning/product_sums.h): the inputs that are known to be worst, a search
// that climbs to worse ones, and what usual data leave of the usual bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <type_traits>
#include <vector>

#include "device/emulator/meaning/product_sums.h"
#include "ops/gemm/error_bound.h"
#include "ops/gemm/test/worst_codes.h"
#include "tests/gemm_problem.h"

namespace blockscale {
namespace {

using emulator::meaning::ProductSumRule;
using emulator::meaning::SumTerm;
using gemm_detail::ErrorLimit;
using gemm_detail::GemmPath;
using gemm_detail::ReferenceElement;
using Codes = test::CodePair;
using test::Random;

constexpr std::size_t kBlock = 128;  // of k: what wgmma sums before f32 does

/// How an instruction adds, and how many one after the other make a sum.
struct Sums {
  Format format;
  ProductSumRule rule;
  std::size_t products;  // of an instruction
  std::size_t count;
};
const Sums kWgmma = {Format::e4m3, {}, 32, 4};
Sums plain(Format form, std::size_t instructions) {
  return {form, {.fraction_bits = 25, .group = 16, .result_bits = 23}, 16, instructions};
}

double value_of(Format format, std::uint32_t code) {
  return visit_format(format, [&](auto tag) -> double {
    if constexpr (tag.value == Format::f32) return 0;
    return double{decode<tag.value>(code)};
  });
}

/// What the tensor cores make of codes, and what is exact.
struct Result {
  float sum = 0;
  ReferenceElement exact;

  double error() const {  // in units of 2^-24 of the magnitude
    if (exact.magnitude == 0) return 0;
    return std::abs(double{sum} - exact.value) / (exact.magnitude * 0x1p-24);
  }
};

/// The sum of codes [first, first + sums.products * sums.count).
Result sum_of(const Sums& sums, const Codes& codes, std::size_t first = 0) {
  using namespace emulator::meaning;
  Result result;
  std::vector<SumTerm> terms(sums.products);
  for (std::size_t i = 0; i < sums.count; ++i) {
    for (SumTerm& term : terms) {
      const std::uint32_t a = codes.a[first], b = codes.b[first];
      term = product_term(factor_term(sums.format, a), factor_term(sums.format, b),
                          sums.rule.exponent);
      const double product = value_of(sums.format, a) * value_of(sums.format, b);
      result.exact.value += product;
      result.exact.magnitude += std::abs(product);
      ++first;
    }
    result.sum = product_sum(sums.rule, result.sum, terms);
  }
  return result;
}

/// Codes of k-blocks one after the other, added in f32 as a kernel does; without block `dropped`.
Result sum_of_blocks(const Codes& codes, std::size_t dropped = ~std::size_t{0}) {
  Result result;
  for (std::size_t block = 0; block < codes.a.size() / kBlock; ++block) {
    const Result part = sum_of(kWgmma, codes, block * kBlock);
    if (block != dropped) result.sum += part.sum;
    result.exact.value += part.exact.value;
    result.exact.magnitude += part.exact.magnitude;
  }
  return result;
}

TEST(ProvenError, OfWgmmaHoldsForTheWorstThatAreKnown) {
  const Result normals = sum_of(kWgmma, test::worst_normal_codes());
  EXPECT_EQ(normals.sum, 65536);
  EXPECT_EQ(normals.exact.value, 66496.4375);
  EXPECT_NEAR(normals.error(), 242'321, 1);
  EXPECT_LE(normals.error(), gemm_detail::kWgmmaNormalError);
  const Result subnormals = sum_of(kWgmma, test::worst_subnormal_codes());
  EXPECT_EQ(subnormals.sum, 0.5f);
  EXPECT_NEAR(subnormals.error(), 657'472, 500);
  EXPECT_GT(subnormals.error(), gemm_detail::kWgmmaNormalError);
  EXPECT_LE(subnormals.error(), gemm_detail::kWgmmaError);
}

/// The largest error that a search finds: one or several codes are changed, and what is not smaller
/// is kept.
double climb(const Sums& sums, Codes codes, Random& random, int steps,
             const std::function<std::uint32_t()>& draw) {
  double largest = sum_of(sums, codes).error();
  for (int step = 0; step < steps; ++step) {
    Codes next = codes;
    const std::int64_t last = std::ssize(next.a) - 1;
    auto& side = test::chance(random, 0.5) ? next.a : next.b;
    const std::uint32_t code = draw();
    const std::int64_t first = test::uniform(random, 0, last);
    const std::int64_t count = test::chance(random, 0.5) ? 1 : test::uniform(random, 1, 96);
    for (std::int64_t i = first; i <= std::min(first + count - 1, last); ++i) {
      side[static_cast<std::size_t>(i)] = code;
    }
    const double error = sum_of(sums, next).error();
    if (error < largest) continue;
    largest = error;
    codes = next;
  }
  return largest;
}

/// A finite code of a format; e4m3's of normal numbers alone, if so asked.
std::uint32_t random_code(Random& random, Format format, bool normal) {
  const FormatTraits t = format_traits(format);
  for (;;) {
    const auto code = static_cast<std::uint32_t>(test::uniform(random, 0, (1 << t.bits) - 1));
    const std::uint32_t magnitude = code & ((1u << (t.bits - 1)) - 1);
    if (magnitude > t.max_code) continue;
    if (normal && magnitude < 1u << t.mantissa_bits && magnitude != 0) continue;
    return code;
  }
}

struct Climb {
  Sums sums;
  bool normal;
  double proven;
  double least;  // that a search reaches, or it is none
};

TEST(ProvenError, HoldsForWhatASearchClimbsTo) {
  using gemm_detail::mma_segment_error;
  const Climb climbs[] = {
      {kWgmma, true, gemm_detail::kWgmmaNormalError, 150'000},
      {kWgmma, false, gemm_detail::kWgmmaError, 150'000},
      {plain(Format::bf16, 1), true, mma_segment_error(Format::bf16, 1), 6},
      {plain(Format::bf16, 2), true, mma_segment_error(Format::bf16, 2), 12},
      {plain(Format::f16, 1), false, mma_segment_error(Format::f16, 1), 500},
      {plain(Format::f16, 2), false, mma_segment_error(Format::f16, 2), 500},
      {plain(Format::bf16, 8), true, mma_segment_error(Format::bf16, 8), 20},
      {plain(Format::f16, 8), false, mma_segment_error(Format::f16, 8), 30},
      {{Format::e4m3, {}, 32, 16}, false, gemm_detail::wgmma_error(16), 250'000},
  };
  Random random(31);
  for (const Climb& c : climbs) {
    double largest = 0;
    for (int start = 0; start < 4; ++start) {
      const auto draw = [&]() -> std::uint32_t {
        if (c.sums.format != Format::bf16) return random_code(random, c.sums.format, c.normal);
        // bf16's exponents far from the ends of its range.
        return static_cast<std::uint32_t>(test::uniform(random, 0, 1) << 15 |
                                          test::uniform(random, 110, 140) << 7 |
                                          test::uniform(random, 0, 127));
      };
      Codes codes;
      while (codes.a.size() < c.sums.products * c.sums.count) {
        codes.a.push_back(draw());
        codes.b.push_back(draw());
      }
      largest = std::max(largest, climb(c.sums, codes, random, 20'000, draw));
    }
    EXPECT_LE(largest, c.proven) << format_traits(c.sums.format).name << c.sums.count;
    EXPECT_GE(largest, c.least) << format_traits(c.sums.format).name << c.sums.count;
  }
}

/// Codes as quantizers to e4m3 leave them of a block: the largest magnitude becomes 448.
void append_block(std::vector<std::uint32_t>& codes, const std::function<double()>& draw) {
  std::array<double, kBlock> values;
  for (double& value : values) value = draw();
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  for (const double value : values) {
    codes.push_back(encode<Format::e4m3>(static_cast<float>(value / largest * 448)));
  }
}

/// A product's codes, drawn number by number for A and for B.
Codes blocks_of(std::size_t blocks, const std::function<double()>& a,
                const std::function<double()>& b) {
  Codes codes;
  for (std::size_t i = 0; i < blocks; ++i) {
    append_block(codes.a, a);
    append_block(codes.b, b);
  }
  return codes;
}

/// How numbers of A and of B are drawn, of data that the usual bound holds for.
std::vector<std::array<std::function<double()>, 2>> usual_families(Random& random) {
  const auto normal = [&] { return test::normal_real(random); };
  const auto positive = [&] { return std::abs(test::normal_real(random)); };
  const auto with_outliers = [&random, positive] {  // 30-fold, in a channel of 64
    return positive() * (test::chance(random, 1.0 / 64) ? 30 : 1);
  };
  return {
      {normal, normal}, {positive, positive}, {with_outliers, positive}, {with_outliers, normal}};
}

TEST(UsualError, OfWgmmaHoldsForUsualData) {
  Random random(32);
  const auto families = usual_families(random);
  const ErrorLimit usual = gemm_detail::usual_error(GemmPath::sm90_fp8);
  double largest = 0;
  const auto measure = [&](const Codes& codes) {
    const Result result = sum_of_blocks(codes);
    largest = std::max(largest, result.error() / usual(result.exact));
  };
  for (int i = 0; i < 1500; ++i) {
    const auto blocks = static_cast<std::size_t>(test::uniform(random, 1, 4));
    for (const auto& [a, b] : families) measure(blocks_of(blocks, a, b));
    Codes codes;
    for (std::size_t k = 0; k < kBlock; ++k) {
      codes.a.push_back(random_code(random, Format::e4m3, false));
      codes.b.push_back(random_code(random, Format::e4m3, false));
    }
    measure(codes);
  }
  EXPECT_LE(largest, 1);
  EXPECT_GE(largest, 0.25);
}

/// Chains of instructions over all of K.
TEST(UsualError, OfWgmmaOverAllOfKHoldsForUsualData) {
  Random random(35);
  const auto families = usual_families(random);
  double largest = 0;
  for (const std::size_t blocks : {std::size_t{4}, std::size_t{32}, std::size_t{100}}) {
    const ErrorLimit usual = gemm_detail::usual_error(GemmPath::sm90_fp8_fast,
                                                      static_cast<std::int64_t>(blocks * kBlock));
    const Sums all = {Format::e4m3, {}, 32, 4 * blocks};
    for (std::size_t i = 0; i < 2000 / blocks; ++i) {
      for (const auto& [a, b] : families) {
        const Result result = sum_of(all, blocks_of(blocks, a, b));
        largest = std::max(largest, result.error() / usual(result.exact));
      }
    }
  }
  EXPECT_LE(largest, 1);
  EXPECT_GE(largest, 0.25);
}

/// A step of weights in NVFP4, times their scales, and of tokens, which `form` holds.
Codes scaled_step(Format form, Format of_tokens, Random& random,
                  const std::function<double()>& tokens, const std::function<double()>& weights) {
  const auto rounded = [](auto format, double x) {
    return double{decode<format()>(encode<format()>(static_cast<float>(x)))};
  };
  Codes codes;
  for (std::size_t block = 0; block < kBlock / 16; ++block) {
    const double scale = rounded(std::integral_constant<Format, Format::ue4m3>{},
                                 std::exp2(test::uniform_real(random, -1.5, 1.5)));
    for (int k = 0; k < 16; ++k) {
      const double code = rounded(std::integral_constant<Format, Format::e2m1>{}, 1.5 * weights());
      const std::uint32_t token = encode(of_tokens, static_cast<float>(tokens()));
      codes.a.push_back(encode(form, static_cast<float>(value_of(of_tokens, token))));
      codes.b.push_back(encode(form, static_cast<float>(code * scale)));
    }
  }
  return codes;
}

/// Steps of eight instructions whose sums f32 adds: what the kernels of few rows do.
TEST(UsualError, OfScaledWeightsHoldsForUsualData) {
  Random random(34);
  const auto families = usual_families(random);
  const ErrorLimit usual = gemm_detail::usual_error(GemmPath::fp4_few_rows);
  double largest = 0;
  for (const Format of_tokens : {Format::bf16, Format::f16, Format::e4m3}) {
    const Format form = of_tokens == Format::f16 ? Format::f16 : Format::bf16;
    for (int i = 0; i < 1200; ++i) {
      const std::int64_t steps = test::uniform(random, 1, i % 20 == 0 ? 64 : 8);
      for (const auto& [tokens, weights] : families) {
        Result result;
        for (std::int64_t step = 0; step < steps; ++step) {
          const Result part =
              sum_of(plain(form, 8), scaled_step(form, of_tokens, random, tokens, weights));
          const auto scale = static_cast<float>(
              of_tokens == Format::e4m3 ? std::exp2(test::uniform_real(random, -1.5, 1.5)) : 1);
          result.sum = std::fma(part.sum, scale, result.sum);
          result.exact.value += part.exact.value * double{scale};
          result.exact.magnitude += part.exact.magnitude * double{scale};
        }
        largest = std::max(largest, result.error() / usual(result.exact));
      }
    }
  }
  EXPECT_LE(largest, 1);
  EXPECT_GE(largest, 0.25);
}

/// What the proven bound does not find at K = 8192.
TEST(UsualError, OfWgmmaRejectsADroppedBlock) {
  Random random(33);
  const auto normal = [&] { return test::normal_real(random); };
  const ErrorLimit usual = gemm_detail::usual_error(GemmPath::sm90_fp8);
  constexpr int kProducts = 40;
  int rejected = 0;
  for (int i = 0; i < kProducts; ++i) {
    const Codes codes = blocks_of(64, normal, normal);
    const Result right = sum_of_blocks(codes), wrong = sum_of_blocks(codes, 17);
    EXPECT_LE(right.error(), usual(right.exact));
    rejected += wrong.error() > usual(wrong.exact) ? 1 : 0;
    EXPECT_LE(wrong.error(), gemm_detail::proven_error(GemmPath::sm90_fp8, Recipe::fp8_1x128,
                                                       Recipe::fp8_128x128, 8192));
  }
  EXPECT_GT(rejected, kProducts / 3);
}

/// The constants of docs/numerics.md by its formulas.
TEST(ProvenError, GrowsWithKAsF32Does) {
  using gemm_detail::proven_error;
  constexpr Recipe kA = Recipe::fp8_1x128, kB = Recipe::fp8_128x128;
  EXPECT_NEAR(proven_error(GemmPath::sm90_fp8, kA, kB, 128), 348 * 2048 + 17, 2);
  EXPECT_NEAR(proven_error(GemmPath::sm90_fp8, kA, kB, 8192), 348 * 2048 + 80, 8);
  EXPECT_EQ(proven_error(GemmPath::sm90_fp8_fast, Recipe::fp8_row, Recipe::mxfp4, 128),
            proven_error(GemmPath::sm90_fp8, Recipe::fp8_row, Recipe::mxfp4, 128));
  EXPECT_NEAR(proven_error(GemmPath::sm90_fp8_fast, Recipe::fp8_row, Recipe::mxfp4, 4096),
              (33 * 128 + 216) * 2048 + 48, 40);
  EXPECT_NEAR(proven_error(GemmPath::plain, Recipe::bf16, Recipe::mxfp4, 4096), 19.5 + 144, 0.1);
  EXPECT_NEAR(proven_error(GemmPath::plain, Recipe::bf16, Recipe::nvfp4, 4096), 9.5 + 272, 0.1);
  EXPECT_NEAR(proven_error(GemmPath::plain, Recipe::f16, Recipe::mxfp4, 4096), 8196 + 144, 0.2);
  EXPECT_NEAR(proven_error(GemmPath::plain, Recipe::f32, Recipe::mxfp4, 4096), 428, 0.5);
  EXPECT_NEAR(proven_error(GemmPath::fp4_few_rows, Recipe::bf16, Recipe::nvfp4, 4096), 79.5 + 48,
              0.1);
  EXPECT_NEAR(proven_error(GemmPath::fp4_few_rows, Recipe::bf16, Recipe::mxfp4, 4096), 79.5 + 144,
              0.1);
  EXPECT_NEAR(proven_error(GemmPath::fp4_few_rows, Recipe::f16, Recipe::nvfp4, 4096), 8256 + 48,
              0.2);
  EXPECT_NEAR(proven_error(GemmPath::fp4_few_rows, kA, Recipe::mxfp4, 4096), 79.5 + 144, 0.1);
  EXPECT_NEAR(proven_error(GemmPath::cpu_fused, Recipe::bf16, Recipe::nvfp4, 256), 272, 0.1);
  EXPECT_EQ(proven_error(GemmPath::cpu_fused, Recipe::bf16, Recipe::nvfp4, 4096),
            proven_error(GemmPath::cpu_fused, Recipe::bf16, Recipe::nvfp4, 1 << 20));
}

}  // namespace
}  // namespace blockscale
