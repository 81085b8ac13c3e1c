// The inner loops of the CPU GEMM: a few rows of A times one panel of B, over one slab of k.
//
// Included once per SIMD target by ops/gemm/cpu/gemm.cpp.
//
//   a       rows x kSlab, row-major f32: row r starts at a + r * kSlab
//   b       depth x kPanelColumns, f32: the values of one k lie together
//   tile    rows x kTileColumns, f64: the sums of earlier slabs, added to
//
// `f32` kernels sum a slab (at most kSlab products) in f32 and then add it to the f64 tile, so that
// rounding errors grow with kSlab, not with K. `f64` kernels serve slabs whose products may leave
// f32's range: every product of two f32 is exact in f64 and none overflows.

#if defined(BLOCKSCALE_OPS_GEMM_MICROKERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BLOCKSCALE_OPS_GEMM_MICROKERNEL_INL_H_
#undef BLOCKSCALE_OPS_GEMM_MICROKERNEL_INL_H_
#else
#define BLOCKSCALE_OPS_GEMM_MICROKERNEL_INL_H_
#endif

#include <hwy/highway.h>

#include <array>
#include <cstdint>
#include <utility>

#include "ops/gemm/cpu/plan.h"

HWY_BEFORE_NAMESPACE();
namespace blockscale::gemm_detail {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using DoubleTag = hn::ScalableTag<double>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(FloatTag()));
inline constexpr int kPanelVectors = 2;
inline constexpr int kPanelColumns = kPanelVectors * kLanes;

/// Rows of a register tile: its accumulators, one panel row of B and one broadcast of A fill the
/// vector registers (32 on AVX-512 and NEON, 16 elsewhere).
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_NEON
inline constexpr int kMaxPanelRows = 14;
#else
inline constexpr int kMaxPanelRows = 6;
#endif

static_assert(kTileColumns % kPanelColumns == 0);

/// Adds the f32 sums in `sum` to kLanes elements of the tile.
HWY_INLINE void add_to_tile(hn::Vec<FloatTag> sum, double* tile) {
#if HWY_TARGET == HWY_SCALAR
  *tile += static_cast<double>(hn::GetLane(sum));
#else
  const DoubleTag dd;
  const hn::Half<FloatTag> dh;
  constexpr int kHalf = kLanes / 2;
  const auto lower = hn::PromoteTo(dd, hn::LowerHalf(dh, sum));
  const auto upper = hn::PromoteTo(dd, hn::UpperHalf(dh, sum));
  hn::Store(hn::Add(hn::Load(dd, tile), lower), dd, tile);
  hn::Store(hn::Add(hn::Load(dd, tile + kHalf), upper), dd, tile + kHalf);
#endif
}

template <int kRows>
void multiply_f32(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, std::int64_t depth,
                  double* HWY_RESTRICT tile) {
  const FloatTag df;
  hn::Vec<FloatTag> sum[kRows][kPanelVectors];
  HWY_UNROLL(kMaxPanelRows)
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = hn::Zero(df);
    sum[r][1] = hn::Zero(df);
  }
  for (std::int64_t i = 0; i < depth; ++i) {
    const auto b0 = hn::Load(df, b + i * kPanelColumns);
    const auto b1 = hn::Load(df, b + i * kPanelColumns + kLanes);
    HWY_UNROLL(kMaxPanelRows)
    for (int r = 0; r < kRows; ++r) {
      const auto broadcast = hn::Set(df, a[r * kSlab + i]);
      sum[r][0] = hn::MulAdd(broadcast, b0, sum[r][0]);
      sum[r][1] = hn::MulAdd(broadcast, b1, sum[r][1]);
    }
  }
  HWY_UNROLL(kMaxPanelRows)
  for (int r = 0; r < kRows; ++r) {
    add_to_tile(sum[r][0], tile + r * kTileColumns);
    add_to_tile(sum[r][1], tile + r * kTileColumns + kLanes);
  }
}

/// multiply_f32 for 1..kMaxPanelRows rows.
using MultiplyF32 = void (*)(const float*, const float*, std::int64_t, double*);
template <int... kIndex>
constexpr std::array<MultiplyF32, sizeof...(kIndex)> multiply_f32_table(
    std::integer_sequence<int, kIndex...>) {
  return {multiply_f32<kIndex + 1>...};
}
inline constexpr auto kMultiplyF32 =
    multiply_f32_table(std::make_integer_sequence<int, kMaxPanelRows>());

template <int kRows>
void multiply_f64(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, std::int64_t depth,
                  double* HWY_RESTRICT tile) {
  const DoubleTag dd;
  const hn::Rebind<float, DoubleTag> df;
  constexpr int kDoubles = static_cast<int>(hn::MaxLanes(dd));
  constexpr int kVectors = kPanelColumns / kDoubles;
  hn::Vec<DoubleTag> sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = hn::Load(dd, tile + r * kTileColumns + v * kDoubles);
    }
  }
  for (std::int64_t i = 0; i < depth; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      const auto values = hn::PromoteTo(dd, hn::Load(df, b + i * kPanelColumns + v * kDoubles));
      for (int r = 0; r < kRows; ++r) {
        const auto broadcast = hn::Set(dd, static_cast<double>(a[r * kSlab + i]));
        sum[r][v] = hn::MulAdd(broadcast, values, sum[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      hn::Store(sum[r][v], dd, tile + r * kTileColumns + v * kDoubles);
    }
  }
}

/// Adds `rows` (at most kMaxPanelRows) rows of a slab's products to the tile. `f32_is_safe` says
/// that the f32 kernel cannot overflow and that what it underflows is far below its rounding.
inline void multiply(int rows, bool f32_is_safe, const float* a, const float* b, std::int64_t depth,
                     double* tile) {
  if (f32_is_safe) {
    kMultiplyF32[static_cast<std::size_t>(rows - 1)](a, b, depth, tile);
    return;
  }
  constexpr int kStep = 4;
  int r = 0;
  for (; r + kStep <= rows; r += kStep) {
    multiply_f64<kStep>(a + r * kSlab, b, depth, tile + r * kTileColumns);
  }
  for (; r < rows; ++r) multiply_f64<1>(a + r * kSlab, b, depth, tile + r * kTileColumns);
}

}  // namespace HWY_NAMESPACE
}  // namespace blockscale::gemm_detail
HWY_AFTER_NAMESPACE();

#endif  // include guard, toggled per target
