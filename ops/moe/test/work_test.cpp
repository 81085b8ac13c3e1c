// What a layer takes at least, and layers of which only shapes are known.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "tests/expect_error.h"

namespace blockscale {
namespace {

constexpr std::int64_t kUp = 256 * 128, kDown = 128 * 128;  // values of an expert

TEST(MoeWork, CountsExpertsThatHaveRows) {
  MoeArguments x = imagined_moe(3, 128, 128, 8, 2, Recipe::fp8_128x128, Format::f32);
  x.first_expert = 4;
  const std::vector<std::int32_t> ids = {4, 5, 4, -1, 11, 12};  // four are of this device
  x.ids = ids.data();
  const GemmWork work = moe_work(x);
  EXPECT_EQ(work.bytes, 3 * (kUp + 2 * 4 + kDown + 4) + 3 * 128 * 2 + 3 * 128 * 4);
  EXPECT_EQ(work.operations, 2.0 * 4 * (kUp + kDown));
  x.shared = {x.w13, x.w2};
  x.shared->w13.batch = x.shared->w2.batch = 1;
  EXPECT_EQ(moe_work(x).bytes, work.bytes + kUp + 2 * 4 + kDown + 4);
  EXPECT_EQ(moe_work(x).operations, work.operations + 2.0 * 3 * (kUp + kDown));
}

TEST(MoeWork, OfGatesAndUpsApartAndOfNoRows) {
  MoeArguments x = imagined_moe(1, 128, 192, 2, 1, Recipe::fp8_128x128, Format::bf16);
  std::int32_t id = 1;
  x.ids = &id;
  const GemmWork together = moe_work(x);
  x.w13.batch = 4;
  x.w13.rows = 192;
  const GemmWork apart = moe_work(x);
  EXPECT_EQ(apart.operations, together.operations);
  EXPECT_EQ(apart.bytes, together.bytes + 4);  // 2 rows of scales each, in place of 3 of both
  id = -1;
  EXPECT_EQ(moe_work(x).operations, 0);
  EXPECT_EQ(moe_work(x).bytes, 2 * 2 * 128);
}

TEST(MoeWork, ImaginedLayersHavePlans) {
  const MoeArguments x = imagined_moe(7, 256, 128, 8, 2, Recipe::mxfp4, Format::f16,
                                      Gelu{GeluForm::erf}, Recipe::mxfp8_e4m3);
  EXPECT_EQ(describe_moe(x).find("7 tokens, 2 experts each, of 8 here"), 0u);
  EXPECT_NE(cuda::describe_moe(x).find("moe_sort"), std::string::npos);
  test::expect_invalid("w13.k", "", [] {
    MoeArguments other = imagined_moe(7, 256, 128, 8, 2, Recipe::bf16, Format::f16);
    other.w13.k = 64;
    (void)moe_work(other);
  });
}

}  // namespace
}  // namespace blockscale
