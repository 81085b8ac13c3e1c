// Planted bugs: instructions and shared memory that the launch's architecture does not have.
#include <stdexcept>

#include "device/emulator/test/wgmma_test_support.h"
#include "device/ptx/cluster.h"
#include "device/ptx/sm100/convert.h"
#include "device/ptx/sm100/ldmatrix.h"
#include "device/ptx/sm100/packed.h"
#include "device/ptx/sm100/tensor_copy.h"
#include "device/ptx/sm120/mma.h"

namespace blockscale::emulator {
namespace {

constexpr Architecture kAll[] = {Architecture::sm_90a, Architecture::sm_100f,
                                 Architecture::sm_120f};

Report run_on(Architecture architecture, const Program& program) {
  Options options;
  options.architecture = architecture;
  return launch(program.shape, program.buffers, options, program.kernel);
}

/// Nothing is found where the architecture has it, elsewhere the marked line and these texts.
void expect_only_on(const std::vector<Architecture>& owners, const Program& program,
                    const Mark& bug, const std::vector<std::string>& texts) {
  for (const Architecture architecture : kAll) {
    const Report report = run_on(architecture, program);
    SCOPED_TRACE(std::string(name_of(architecture)) + ": " + report.text());
    if (std::find(owners.begin(), owners.end(), architecture) != owners.end()) {
      EXPECT_TRUE(report.ok());
      continue;
    }
    EXPECT_TRUE(
        report.has(FindingKind::missing_instruction, bug.at().file_name(), bug.at().line()));
    ASSERT_FALSE(report.ok());
    for (const std::string& text : texts) {
      EXPECT_THAT(report.findings.front().text, testing::HasSubstr(text));
    }
    EXPECT_THAT(report.findings.front().text,
                testing::HasSubstr(std::string("kernels for ") + name_of(architecture)));
  }
}

TEST(PlantedArchitecture, ProductsOfWarpgroups) {
  Mark bug;
  const Operands operands;
  expect_only_on({Architecture::sm_90a},
                 {kOneWarpgroup, operands.buffers(),
                  [&] {
                    load(operands);
                    fence_multiply_wait(bug.here());
                  }},
                 bug, {"issues wgmma", "those for sm_90a do"});
}

TEST(PlantedArchitecture, GroupsOfProducts) {
  Mark bug;
  expect_only_on({Architecture::sm_90a},
                 {{.block = {128}}, {}, [&] { ptx::wgmma_commit_group(bug.here()); }}, bug,
                 {"wgmma_commit_group"});
}

/// One thread waits for the 1,024 bytes that `copy` begins to bring.
template <class Copy>
void bring_bytes(const Copy& copy) {
  if (ptx::tid_x() != 0) return;
  ptx::mbarrier_init(full(), 1, "full");
  ptx::fence_mbarrier_init();
  ptx::mbarrier_arrive_expect_tx(full(), 1024);
  copy();
  device::mbarrier_wait(full(), 0);
}

TEST(PlantedArchitecture, Multicast) {
  Mark bug;
  const std::vector<uint8_t> bytes(64 * 128, 1);
  const TensorMap map = encode_tensor_map(rows_map(bytes, 64, 128, 8, TensorMapSwizzle::bytes_128));
  expect_only_on({Architecture::sm_90a, Architecture::sm_100f},
                 {{.block = {32}, .dynamic_shared_bytes = 2048},
                  {input("bytes", bytes)},
                  [&] {
                    bring_bytes([&] {
                      ptx::cp_async_bulk_tensor_shared_global_multicast<2>(tile_a(), &map, {{0, 0}},
                                                                           full(), 0b1, bug.here());
                    });
                  }},
                 bug, {"multicast", "those for sm_90a and sm_100f do"});
}

TEST(PlantedArchitecture, GatheredRows) {
  Mark bug;
  const std::vector<uint8_t> bytes(64 * 256, 1);
  TensorMapDescription description = rows_map(bytes, 64, 256, 1, TensorMapSwizzle::none);
  description.box[0] = 256;
  const TensorMap map = encode_tensor_map(description);
  expect_only_on({Architecture::sm_100f, Architecture::sm_120f},
                 {{.block = {32}, .dynamic_shared_bytes = 2048},
                  {input("bytes", bytes)},
                  [&] {
                    bring_bytes([&] {
                      ptx::cp_async_bulk_tensor_shared_global_gather4(
                          tile_a(), &map, 0, {3, 1, 63, 0}, full(), bug.here());
                    });
                  }},
                 bug, {"gather4", "those for sm_100f and sm_120f do"});
}

TEST(PlantedArchitecture, NarrowConversions) {
  Mark bug;
  expect_only_on(
      {Architecture::sm_100f, Architecture::sm_120f},
      {{.block = {32}}, {}, [&] { (void)ptx::cvt_rn_satfinite_e2m1x2_f32(1, 2, bug.here()); }}, bug,
      {"cvt_rn_satfinite_e2m1x2_f32", "those for sm_100f and sm_120f do"});
  expect_only_on(
      {Architecture::sm_100f, Architecture::sm_120f},
      {{.block = {32}}, {}, [&] { (void)ptx::cvt_rn_bf16x2_ue8m0x2(0x7F7F, bug.here()); }}, bug,
      {"cvt_rn_bf16x2_ue8m0x2"});
}

TEST(PlantedArchitecture, PackedArithmetic) {
  Mark bug;
  const ptx::F32x2 two = {{1, 2}};
  expect_only_on({Architecture::sm_100f, Architecture::sm_120f},
                 {{.block = {32}}, {}, [&] { (void)ptx::fma_rn_f32x2(two, two, two, bug.here()); }},
                 bug, {"fma_rn_f32x2"});
}

TEST(PlantedArchitecture, ProductsThatScale) {
  Mark bug;
  expect_only_on({Architecture::sm_120f},
                 {{.block = {32}},
                  {},
                  [&] {
                    ptx::MmaAccumulator d = {};
                    ptx::mma_sync_m16n8k64_mxf4nvf4<4>(d, {}, {}, 0, 0, bug.here());
                  }},
                 bug, {"scaled_mma_sync", "those for sm_120f do"});
}

TEST(PlantedArchitecture, MatricesOfNarrowElements) {
  Mark bug;
  expect_only_on({Architecture::sm_100f, Architecture::sm_120f},
                 {{.block = {32}, .dynamic_shared_bytes = 512},
                  {},
                  [&] {
                    const ptx::SharedAddress row = device::shared_base() + 16 * ptx::laneid();
                    for (uint32_t i = 0; i < 4; ++i) ptx::st_shared(row + 4 * i, 0u);
                    ptx::bar_warp_sync(ptx::kFullMask);
                    (void)ptx::ldmatrix_b8x16<6, 4>(row, bug.here());
                  }},
                 bug, {"ldmatrix_b8x16", "those for sm_100f and sm_120f do"});
}

TEST(PlantedArchitecture, BoxesOfNarrowElements) {
  Mark bug;
  const std::vector<uint8_t> bytes(64 * 128, 1);
  TensorMapDescription description = rows_map(bytes, 64, 128, 8, TensorMapSwizzle::bytes_128);
  description.sizes[0] *= 2;
  description.box[0] *= 2;
  description.element = TensorMapElement::u4x16_packed;
  const TensorMap map = encode_tensor_map(description);
  expect_only_on({Architecture::sm_100f, Architecture::sm_120f},
                 {{.block = {32}, .dynamic_shared_bytes = 2048},
                  {input("bytes", bytes)},
                  [&] {
                    bring_bytes([&] {
                      ptx::cp_async_bulk_tensor_shared_global<2>(tile_a(), &map, {{0, 0}}, full(),
                                                                 bug.here());
                    });
                  }},
                 bug, {"cp_async_bulk_tensor_shared_global", "those for sm_100f and sm_120f do"});
}

/// They are pure functions elsewhere.
TEST(PlantedArchitecture, NoneOutsideOfALaunch) {
  EXPECT_EQ(ptx::add_rn_f32x2({{1, 2}}, {{3, 4}}).at[1], 6);
}

TEST(PlantedArchitecture, SharedMemory) {
  for (const Architecture architecture : kAll) {
    const uint32_t most = max_shared_bytes(architecture);
    EXPECT_EQ(most, architecture == Architecture::sm_120f ? 101376u : 232448u);
    EXPECT_TRUE(
        run_on(architecture, {{.block = {32}, .dynamic_shared_bytes = most}, {}, [] {}}).ok());
    const Report report =
        run_on(architecture, {{.block = {32}, .dynamic_shared_bytes = most + 16}, {}, [] {}});
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.findings.front().kind, FindingKind::launch_limits);
    EXPECT_THAT(report.findings.front().text,
                testing::HasSubstr(std::string("on ") + name_of(architecture)));
  }
}

TEST(PlantedArchitecture, Clusters) {
  const LaunchShape pair = {.grid = {2}, .block = {32}, .cluster = {2}};
  EXPECT_TRUE(run_on(Architecture::sm_100f, {pair, {}, [] {}}).ok());
  const Report report = run_on(Architecture::sm_120f, {pair, {}, [] {}});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.findings.front().kind, FindingKind::launch_limits);
  EXPECT_THAT(report.findings.front().text, testing::HasSubstr("1 to 1 on sm_120f"));
}

TEST(PlantedArchitecture, AreThoseOfDevices) {
  EXPECT_EQ(architecture_of(90), Architecture::sm_90a);
  EXPECT_EQ(architecture_of(103), Architecture::sm_100f);
  EXPECT_EQ(architecture_of(121), Architecture::sm_120f);
  EXPECT_THROW((void)architecture_of(80), std::invalid_argument);
}

}  // namespace
}  // namespace blockscale::emulator
