// Correct programs with ldmatrix and stmatrix: no report under any schedule, and every element
// where a plain loop finds it.
#include <algorithm>
#include <numeric>
#include <vector>

#include "device/emulator/test/planted_test_support.h"
#include "device/ptx/barrier.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/ldmatrix.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"

namespace blockscale::emulator {
namespace {

constexpr uint32_t kPitch = 48;  // bytes from row to row, 16 of which are a matrix's
constexpr LaunchShape kTwoWarps = {.block = {64}, .dynamic_shared_bytes = 64 * kPitch};

/// Where lane `lane` says that a row begins: row `lane % 8` of matrix `lane / 8`.
ptx::SharedAddress row_of(uint32_t warp, uint32_t lane) {
  return device::shared_base() + (32 * warp + lane) * kPitch;
}

/// Element (row, column) of matrix `matrix`, as a number of its own.
uint16_t element(uint32_t warp, uint32_t matrix, uint32_t row, uint32_t column) {
  return static_cast<uint16_t>(warp << 12 | matrix << 8 | row << 4 | column);
}

/// The elements of a lane's word as the PTX ISA has them, "Figure: ldmatrix fragment layout".
uint32_t expected_word(uint32_t warp, uint32_t matrix, uint32_t lane, bool transposed) {
  const uint32_t row = lane >> 2, column = (lane & 3) << 1;
  const auto at = [&](uint32_t c) {
    return uint32_t{transposed ? element(warp, matrix, c, row) : element(warp, matrix, row, c)};
  };
  return at(column) | at(column + 1) << 16;
}

/// Rows are written by stores of each lane and read by ldmatrix.
template <int kCount, bool kTransposed>
void expect_loads() {
  std::vector<uint32_t> out(64 * kCount);
  const auto kernel = [&] {
    const uint32_t warp = ptx::tid_x() / 32, lane = ptx::laneid();
    for (uint32_t column = 0; column < 8; ++column) {
      ptx::st_shared(row_of(warp, lane) + 2 * column, element(warp, lane / 8, lane % 8, column));
    }
    ptx::bar_warp_sync(ptx::kFullMask);
    // Lanes beyond the last matrix may say anything.
    const ptx::SharedAddress row =
        lane < 8 * kCount ? row_of(warp, lane) : ptx::SharedAddress{0xFFFFFFF1};
    const auto f = ptx::ldmatrix<kCount, kTransposed>(row);
    for (uint32_t i = 0; i < kCount; ++i) {
      ptx::st_global(out.data() + ptx::tid_x() * kCount + i, f.value[i]);
    }
  };
  expect_clean({kTwoWarps, {output("out", out)}, kernel}, [&] {
    for (uint32_t i = 0; i < out.size(); ++i) {
      const uint32_t thread = i / kCount;
      ASSERT_EQ(out[i], expected_word(thread / 32, i % kCount, thread % 32, kTransposed))
          << "thread " << thread << " word " << i % kCount;
    }
    std::fill(out.begin(), out.end(), 0);
  });
}

/// The other way round.
template <int kCount, bool kTransposed>
void expect_stores() {
  std::vector<uint32_t> out(64 * 4);  // of each row
  const auto kernel = [&] {
    const uint32_t warp = ptx::tid_x() / 32, lane = ptx::laneid();
    ptx::MatrixFragment<kCount> f;
    for (uint32_t i = 0; i < kCount; ++i) {
      f.value[i] = expected_word(warp, i, lane, kTransposed);
    }
    ptx::stmatrix<kTransposed>(row_of(warp, lane), f);
    ptx::bar_warp_sync(ptx::kFullMask);
    for (uint32_t i = 0; i < 4; ++i) {
      uint32_t word = ~0u;
      if (lane < 8 * kCount) word = ptx::ld_shared<uint32_t>(row_of(warp, lane) + 4 * i);
      ptx::st_global(out.data() + 4 * ptx::tid_x() + i, word);
    }
  };
  expect_clean({kTwoWarps, {output("out", out)}, kernel}, [&] {
    for (uint32_t i = 0; i < out.size(); ++i) {
      const uint32_t warp = i / 128, row = i / 4 % 32, column = 2 * (i % 4);
      const uint32_t expected =
          row >= 8 * kCount ? ~0u
                            : uint32_t{element(warp, row / 8, row % 8, column)} |
                                  uint32_t{element(warp, row / 8, row % 8, column + 1)} << 16;
      ASSERT_EQ(out[i], expected) << "warp " << warp << " row " << row << " column " << column;
    }
  });
}

TEST(CorrectLdmatrix, Loads) {
  expect_loads<1, false>();
  expect_loads<2, false>();
  expect_loads<4, false>();
  expect_loads<1, true>();
  expect_loads<2, true>();
  expect_loads<4, true>();
}

TEST(CorrectLdmatrix, Stores) {
  expect_stores<1, false>();
  expect_stores<2, false>();
  expect_stores<4, false>();
  expect_stores<1, true>();
  expect_stores<2, true>();
  expect_stores<4, true>();
}

}  // namespace
}  // namespace blockscale::emulator
