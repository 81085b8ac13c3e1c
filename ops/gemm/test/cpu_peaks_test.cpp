// What CPU products are bound by: rates that hold together, and the work of a product.
#include <gtest/gtest.h>

#include <string>

#include "blockscale/bench.h"
#include "blockscale/system.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

double rate(const CpuPeaks& peaks, Multiplier multiplier) {
  return peaks.operations_per_second[static_cast<int>(multiplier)];
}

TEST(CpuPeaks, AreThoseOfTheInstructionSet) {
  const CpuPeaks peaks = measure_cpu_peaks(1, 2);
  EXPECT_EQ(peaks.threads, 1);
  EXPECT_GT(peaks.read_bytes_per_second, 1e8);
  EXPECT_GT(rate(peaks, Multiplier::f32), 1e8);
  const bool has_vnni = std::string(simd_target()) == "AVX3_DL";
  EXPECT_EQ(rate(peaks, Multiplier::int8) > 1e8, has_vnni);
  // What gemm multiplies with is what is measured.
  const GemmArguments x = imagined_gemm(256, 64, 64, Recipe::bf16, Recipe::nvfp4, Format::f32);
  EXPECT_EQ(rate(peaks, Multiplier::tiles) > 1e8, simd_has_tiles());
  const Multiplier pairs = simd_has_tiles() ? Multiplier::tiles : Multiplier::bf16;
  EXPECT_EQ(rate(peaks, pairs) > 1e8, gemm_work(x).multiplier == pairs);
}

TEST(CpuPeaks, OfNothingAreRefused) {
  test::expect_invalid("threads", "is -1, must be at least 0", [] { measure_cpu_peaks(-1); });
  test::expect_invalid("repeats", "is 0, must be at least 1", [] { measure_cpu_peaks(1, 0); });
}

TEST(GemmWork, CountsValuesScalesAndResults) {
  // A: 3 rows of 64 bf16. B: 5 rows of 32 bytes, and 4 scales of a byte. D: 15 bf16.
  const GemmArguments x = imagined_gemm(3, 5, 64, Recipe::bf16, Recipe::nvfp4, Format::bf16);
  const GemmWork work = gemm_work(x);
  EXPECT_EQ(work.bytes, 3 * 64 * 2 + 5 * (32 + 4) + 3 * 5 * 2);
  EXPECT_EQ(work.operations, 2 * 3 * 5 * 64);
}

TEST(GemmWork, PlainOperandsAreMultipliedInF32) {
  const auto of = [](Recipe a, Recipe b) {
    return gemm_work(imagined_gemm(256, 64, 64, a, b, Format::f32)).multiplier;
  };
  EXPECT_EQ(of(Recipe::f32, Recipe::f32), Multiplier::f32);
  EXPECT_EQ(of(Recipe::bf16, Recipe::bf16), Multiplier::f32);
}

TEST(GemmWork, IsBoundByTheLongerOfItsTimes) {
  CpuPeaks peaks;
  peaks.read_bytes_per_second = 10;
  peaks.operations_per_second[static_cast<int>(Multiplier::int8)] = 100;
  EXPECT_DOUBLE_EQ(bound_seconds({20, 100, Multiplier::int8}, peaks), 2);
  EXPECT_DOUBLE_EQ(bound_seconds({20, 300, Multiplier::int8}, peaks), 3);
}

}  // namespace
}  // namespace blockscale
