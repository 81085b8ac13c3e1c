// Planted bugs in SM120's mma.sync. Scales of another row or block show in numbers alone, and only
// where each block of each row has its own: all of these programs run without a finding.
#include "device/emulator/test/scaled_mma_test_support.h"
#include "device/ptx/barrier.h"
#include "device/ptx/warp.h"

namespace blockscale::emulator {
namespace {

template <class Form, int kThreadA, int kThreadB, ScaleBug kBug>
void expect_wrong_numbers(uint32_t at_least) {
  ScaledProduct<Form> product;
  const Report report =
      launch({.block = {32}}, product.buffers(), compiled_for(120, in_order()), [&] {
        multiply_scaled<Form, kThreadA, kThreadB, kBug>(product.a, product.b, product.out.data());
      });
  EXPECT_TRUE(report.ok()) << report.text();
  EXPECT_GE(product.wrong_values(), at_least);
}

TEST(PlantedScaledMma, ScalesOfTheNextThread) {
  expect_wrong_numbers<Nvfp4, 0, 0, ScaleBug::other_thread_of_b>(100);
  expect_wrong_numbers<Mxfp4, 1, 2, ScaleBug::other_thread_of_b>(64);
}

// Rows 0 and 8 are those of the accumulators' first and third values: only row 0 is right.
TEST(PlantedScaledMma, ScalesOfTheAccumulatorsRows) {
  expect_wrong_numbers<Nvfp4, 0, 0, ScaleBug::rows_of_accumulators>(50);
  expect_wrong_numbers<Mxf8f6f4<Format::e4m3, Format::e4m3>, 0, 0, ScaleBug::rows_of_accumulators>(
      50);
}

TEST(PlantedScaledMma, TheByteIsNotAdvanced) {
  expect_wrong_numbers<Mxf8f6f4<Format::e4m3, Format::e3m2>, 0, 0, ScaleBug::same_byte>(64);
  expect_wrong_numbers<Mxfp4, 0, 0, ScaleBug::same_byte>(64);
}

void expect_finding(FindingKind kind, const Mark& bug, const std::string& text,
                    const std::vector<Buffer>& buffers, const std::function<void()>& kernel) {
  for (const Options& options : {in_order(), random_order(1)}) {
    const Report report = launch({.block = {32}}, buffers, compiled_for(120, options), kernel);
    SCOPED_TRACE(report.text());
    ASSERT_FALSE(report.ok());
    EXPECT_TRUE(report.has(kind, bug.at().file_name(), bug.at().line()));
    EXPECT_THAT(report.findings.front().text, testing::HasSubstr(text));
  }
}

// As ldmatrix leaves it.
TEST(PlantedScaledMma, Fp4InTheLowestBits) {
  Mark bug;
  ScaledProduct<Mxf8f6f4<Format::e4m3, Format::e2m1>> product;
  expect_finding(FindingKind::invalid_operand, bug, "bits of B that belong to no element",
                 product.buffers(), [&] {
                   multiply_scaled<Mxf8f6f4<Format::e4m3, Format::e2m1>, 0, 0>(
                       product.a, product.b, product.out.data(), false, bug.here());
                 });
}

TEST(PlantedScaledMma, Fp6InTheHighestBits) {
  Mark bug;
  expect_finding(FindingKind::invalid_operand, bug, "lane 3: bits of A", {}, [&] {
    const ptx::MmaFragmentA a = {{ptx::laneid() == 3 ? 0x40u : 0x3Fu}};
    ptx::MmaAccumulator d = {};
    ptx::mma_sync_m16n8k32_f8f6f4<Format::e3m2, Format::e5m2>(d, a, {}, bug.here());
  });
}

TEST(PlantedScaledMma, LanesSelectDifferentScales) {
  Mark bug;
  expect_finding(FindingKind::divergent_collective, bug, "scaled_mma_sync at", {}, [&] {
    const SourceLocation at = bug.here();
    ptx::MmaAccumulator d = {};
    if (ptx::laneid() < 16) {
      ptx::mma_sync_m16n8k64_mxf4nvf4<2>(d, {}, {}, 0, 0, at);
    } else {
      ptx::mma_sync_m16n8k64_mxf4nvf4<2, ptx::ScaleSelector{2, 0}>(d, {}, {}, 0, 0, at);
    }
  });
}

TEST(PlantedScaledMma, ALaneIsMissing) {
  Mark bug;
  expect_finding(FindingKind::divergent_collective, bug, "bar_warp_sync at", {}, [&] {
    ptx::MmaAccumulator d = {};
    if (ptx::laneid() != 9) ptx::mma_sync_m16n8k64_mxf4nvf4<4>(d, {}, {}, 0, 0, bug.here());
    ptx::bar_warp_sync(ptx::kFullMask);
  });
}

}  // namespace
}  // namespace blockscale::emulator
