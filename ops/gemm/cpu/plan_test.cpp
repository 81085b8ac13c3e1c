// The division of work: whole, bounded in memory, and made for many threads where rows are few.
#include "ops/gemm/cpu/plan.h"

#include <gtest/gtest.h>

#include "core/config.h"
#include "core/recipe.h"
#include "ops/gemm/cpu/value_range.h"

namespace blockscale::gemm_detail {
namespace {

TEST(CpuPlan, SlabsHoldWholeBlocks) {
  for (const RecipeTraits& t : kRecipes) {
    const std::int64_t block = t.block_k == 0 ? kSlab : t.block_k;
    EXPECT_EQ(kSlab % block, 0) << t.name;
  }
}

TEST(CpuPlan, CoversTheShapeWithinItsBounds) {
  for (const std::int64_t m : {1, 16, 100, 512, 513, 5000}) {
    for (const std::int64_t n : {1, 64, 384, 4096}) {
      for (const std::int64_t k : {0, 1, 256, 257, 4096, 1 << 20}) {
        const CpuPlan plan = cpu_plan(m, n, k);
        SCOPED_TRACE(std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + ": " +
                     plan.to_string());
        EXPECT_EQ(plan.slabs, ceil_div(k, kSlab));
        EXPECT_GE(plan.band_rows, 1);
        EXPECT_LE(plan.band_rows, m);
        EXPECT_GE(plan.task_rows, 1);
        EXPECT_LE(plan.task_rows, plan.band_rows);
        // At most 16 MiB of decoded A, or 16 rows.
        EXPECT_TRUE(plan.band_rows <= 16 || plan.band_rows * plan.slabs * kSlab * 4 <= 16 << 20);
      }
    }
  }
}

TEST(CpuPlan, DividesRowsWhereColumnsAreFew) {
  EXPECT_EQ(cpu_plan(512, 4096, 4096).task_rows, 256);
  EXPECT_EQ(cpu_plan(512, 384, 384).task_rows, 128);
  EXPECT_EQ(cpu_plan(16, 64, 64).task_rows, 16);
  EXPECT_EQ(cpu_plan(512, 384, 384).to_string(),
            "band_rows=256 task_rows=128 task_columns=64 slabs=2");
}

ValueRange range_of(float smallest, float largest) {
  ValueRange range;
  range.include(smallest);
  range.include(-largest);
  range.include(0.0f);
  return range;
}

TEST(ValueRange, SaysWhichSlabsFitF32) {
  const ValueRange ordinary = range_of(0x1p-20f, 0x1p20f);
  EXPECT_TRUE(f32_is_safe(ordinary, ordinary));
  EXPECT_TRUE(f32_is_safe(ordinary, ValueRange{}));
  EXPECT_TRUE(f32_is_safe(range_of(0, 0), range_of(0x1p-149f, 0x1p127f)));
  // 256 products below 2^126: exponents of at most 116 together.
  EXPECT_TRUE(f32_is_safe(range_of(1, 0x1p96f), ordinary));
  EXPECT_FALSE(f32_is_safe(range_of(1, 0x1p97f), ordinary));
  // Products of at least 2^-80.
  EXPECT_TRUE(f32_is_safe(range_of(0x1p-60f, 1), ordinary));
  EXPECT_FALSE(f32_is_safe(range_of(0x1p-61f, 1), ordinary));
  // Subnormal, infinite and NaN values.
  const ValueRange huge = range_of(0x1p90f, 0x1p100f);
  EXPECT_FALSE(f32_is_safe(range_of(0x1p-130f, 1), range_of(0x1p60f, 0x1p60f)));
  EXPECT_FALSE(f32_is_safe(range_of(1, bit_cast<float>(0x7F800000u)), ordinary));
  EXPECT_FALSE(f32_is_safe(range_of(1, bit_cast<float>(0xFFC00000u)), ordinary));
  EXPECT_FALSE(f32_is_safe(huge, huge));
}

TEST(ValueRange, SaysWhichProductsDpbf16psMayAdd) {
  const ValueRange one = range_of(1, 1);
  const ValueRange ordinary = range_of(0x1p-20f, 0x1p20f);
  EXPECT_TRUE(pairs_are_safe(ordinary, ordinary, ordinary, ordinary));
  EXPECT_TRUE(pairs_are_safe(ValueRange{}, ordinary, one, one));
  // 2^12 products stay below 2^126, before the factors and after each.
  EXPECT_TRUE(pairs_are_safe(range_of(1, 0x1p78f), range_of(1, 0x1p32f), one, one));
  EXPECT_FALSE(pairs_are_safe(range_of(1, 0x1p79f), range_of(1, 0x1p32f), one, one));
  const ValueRange small = range_of(0x1p-9f, 0x1p-9f);
  EXPECT_FALSE(pairs_are_safe(range_of(1, 0x1p82f), range_of(1, 0x1p32f), small, small));
  EXPECT_FALSE(pairs_are_safe(one, one, one, range_of(0x1p112f, 0x1p112f)));
  // Products of at least 2^-88, before the factors and after each.
  EXPECT_TRUE(pairs_are_safe(range_of(0x1p-80f, 1), range_of(0x1p-8f, 1), one, one));
  EXPECT_FALSE(pairs_are_safe(range_of(0x1p-80f, 1), range_of(0x1p-9f, 1), one, one));
  EXPECT_FALSE(pairs_are_safe(one, one, range_of(0x1p-89f, 1), one));
  // Subnormal, infinite and NaN values, beside zeros too.
  const float infinity = bit_cast<float>(0x7F800000u);
  EXPECT_FALSE(pairs_are_safe(range_of(0x1p-130f, 1), range_of(0x1p60f, 0x1p60f), one, one));
  EXPECT_FALSE(pairs_are_safe(range_of(1, infinity), ordinary, one, one));
  EXPECT_FALSE(pairs_are_safe(ValueRange{}, ordinary, one, range_of(1, infinity)));
}

}  // namespace
}  // namespace blockscale::gemm_detail
