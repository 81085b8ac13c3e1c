// What a checked run costs: 100 of a kernel of the quantizers' size are to take at most 20 s in CI.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <numeric>
#include <vector>

#include "core/format.h"
#include "core/sanitizer_test_share.h"
#include "device/emulator/emulator.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/convert.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"

namespace blockscale::emulator {
namespace {

constexpr double kLimit = test::kIsSanitized ? 100 : 20;  // seconds

constexpr uint32_t kRows = 64, kColumns = 1024, kBlock = 32;

/// A block-scaled FP8 quantizer in small: one block of threads quantizes 4 rows, a thread 8 bf16 at
/// a time, four lanes share a scale, and scales leave through shared memory.
void quantize(const uint16_t* x, uint8_t* codes, uint8_t* scales) {
  using Eight = device::Vector<uint16_t, 8>;
  using Codes = device::Vector<uint16_t, 4>;
  const ptx::SharedAddress s = device::shared_base();
  for (uint32_t r = 0; r < 4; ++r) {
    const uint32_t row = 4 * ptx::ctaid_x() + r, i = ptx::tid_x();
    const Eight v = ptx::ld_global_nc<Eight, ptx::Cache::no_allocate>(
        reinterpret_cast<const Eight*>(x + row * kColumns) + i);
    float amax = 0;
    for (const uint16_t code : v.at) amax = ptx::max(amax, ptx::abs(ptx::cvt_f32_bf16(code)));
    amax = ptx::max(amax, ptx::shfl_sync_bfly(ptx::kFullMask, amax, 1));
    amax = ptx::max(amax, ptx::shfl_sync_bfly(ptx::kFullMask, amax, 2));
    const uint32_t exponent = bit_cast<uint32_t>(amax) >> 23;
    const uint32_t scale = exponent > 8 ? exponent - 8 : 0;
    const float inverse = bit_cast<float>((254 - scale) << 23);
    Codes out;
    for (int k = 0; k < 4; ++k) {
      out.at[k] =
          ptx::cvt_rn_satfinite_e4m3x2_f32(ptx::mul_rn(ptx::cvt_f32_bf16(v.at[2 * k + 1]), inverse),
                                           ptx::mul_rn(ptx::cvt_f32_bf16(v.at[2 * k]), inverse));
    }
    ptx::st_global(reinterpret_cast<Codes*>(codes + row * kColumns) + i, out);
    if (i % 4 == 0) ptx::st_shared(s + i / 4, static_cast<uint8_t>(scale));
    ptx::barrier_sync_all();
    if (i < kColumns / kBlock / 4) {
      ptx::st_global(reinterpret_cast<uint32_t*>(scales + row * kColumns / kBlock) + i,
                     ptx::ld_shared<uint32_t>(s + 4 * i));
    }
    ptx::barrier_sync_all();
  }
}

TEST(Speed, HundredCheckedRuns) {
  std::vector<uint16_t> x(kRows * kColumns);
  for (uint32_t i = 0; i < x.size(); ++i) x[i] = f32_to_bf16(static_cast<float>(i % 4099) - 2000);
  std::vector<uint8_t> codes(x.size()), scales(x.size() / kBlock);
  const LaunchShape shape = {.grid = {kRows / 4}, .block = {128}, .dynamic_shared_bytes = 32};
  const std::vector<Buffer> buffers = {input("x", x), output("codes", codes),
                                       output("scales", scales)};
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t run = 0; run < 100; ++run) {
    const Report report = launch(shape, buffers, run == 0 ? in_order() : random_order(run),
                                 [&] { quantize(x.data(), codes.data(), scales.data()); });
    ASSERT_TRUE(report.ok()) << report.text();
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_LT(seconds.count(), kLimit);
  RecordProperty("seconds", std::to_string(seconds.count()));
  std::printf("100 checked runs of 16 blocks of 128 threads: %.2f s\n", seconds.count());
  EXPECT_EQ(scales[0], static_cast<uint8_t>((bit_cast<uint32_t>(2000.0f) >> 23) - 8));
}

}  // namespace
}  // namespace blockscale::emulator
