// Rows of a layer as runs of kRowRun columns, for kernels that go through them: of one, a thread
// has eight neighbours, or, where rows begin anywhere, eight that lie kRowRunThreads apart.
#pragma once

#include "device/epilogue/elements.h"
#include "device/kernel.h"
#include "device/ptx/convert.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/special_registers.h"

namespace blockscale {

inline constexpr uint32_t kRowRunThreads = 128;
inline constexpr int kRowRunElements = 8;  // of a thread
inline constexpr uint32_t kRowRun = kRowRunThreads * kRowRunElements;

namespace row_runs {

/// Eight codes of 16 bits, or half as many of 32.
struct alignas(16) Words {
  uint32_t at[4];
};

/// Neighbouring elements as f32, of two bytes each.
BLOCKSCALE_DEVICE void decode(const Words& words, Format dtype, float (&to)[kRowRunElements]) {
  BLOCKSCALE_UNROLL
  for (int i = 0; i < kRowRunElements; ++i) {
    const auto code = static_cast<uint16_t>(words.at[i / 2] >> (i % 2 * 16));
    to[i] = decode_element(dtype, code);
  }
}

/// A thread's elements of a run, which are neighbours.
struct Neighbours {
  uint32_t first;

  BLOCKSCALE_DEVICE explicit Neighbours(uint32_t run)
      : first(run * kRowRun + ptx::tid_x() * kRowRunElements) {}

  BLOCKSCALE_DEVICE bool has_any(uint32_t columns) const { return first < columns; }

  using Row = Words;
  BLOCKSCALE_DEVICE Row load_row(const uint16_t* row, uint32_t) const {
    return ptx::ld_global(reinterpret_cast<const Words*>(row + first));
  }
  BLOCKSCALE_DEVICE static float element(const Row& row, int i) {
    return ptx::cvt_f32_bf16(static_cast<uint16_t>(row.at[i / 2] >> (i % 2 * 16)));
  }
  BLOCKSCALE_DEVICE void load(const EpilogueMatrix& x, int64_t row, uint32_t,
                              float (&to)[kRowRunElements]) const {
    const int64_t at = row * x.row_stride + first;
    if (x.dtype != Format::f32) {
      decode(ptx::ld_global(reinterpret_cast<const Words*>(x.data + at * 2)), x.dtype, to);
      return;
    }
    BLOCKSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Words words =
          ptx::ld_global(reinterpret_cast<const Words*>(x.data + at * 4 + half * 16));
      BLOCKSCALE_UNROLL
      for (int i = 0; i < 4; ++i) to[half * 4 + i] = bit_cast<float>(words.at[i]);
    }
  }
  BLOCKSCALE_DEVICE void store(const EpilogueMatrix& x, int64_t row, uint32_t,
                               const float (&sums)[kRowRunElements]) const {
    const int64_t at = row * x.row_stride + first;
    Words words;
    if (x.dtype != Format::f32) {
      BLOCKSCALE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float low = sums[2 * i], high = sums[2 * i + 1];
        words.at[i] = x.dtype == Format::f16 ? ptx::cvt_rn_f16x2_f32(high, low)
                                             : ptx::cvt_rn_bf16x2_f32(high, low);
      }
      ptx::st_global(reinterpret_cast<Words*>(x.data + at * 2), words);
      return;
    }
    BLOCKSCALE_UNROLL
    for (int half = 0; half < 2; ++half) {
      BLOCKSCALE_UNROLL
      for (int i = 0; i < 4; ++i) words.at[i] = bit_cast<uint32_t>(sums[half * 4 + i]);
      ptx::st_global(reinterpret_cast<Words*>(x.data + at * 4 + half * 16), words);
    }
  }
};

/// The same a block's threads apart.
struct Apart {
  uint32_t first;

  BLOCKSCALE_DEVICE explicit Apart(uint32_t run) : first(run * kRowRun + ptx::tid_x()) {}

  BLOCKSCALE_DEVICE uint32_t column(int i) const {
    return first + static_cast<uint32_t>(i) * kRowRunThreads;
  }
  BLOCKSCALE_DEVICE bool has_any(uint32_t columns) const { return first < columns; }

  struct Row {
    uint16_t at[kRowRunElements];
  };
  BLOCKSCALE_DEVICE Row load_row(const uint16_t* row, uint32_t columns) const {
    Row to;
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kRowRunElements; ++i) {
      to.at[i] = column(i) < columns ? ptx::ld_global(row + column(i)) : uint16_t{0};
    }
    return to;
  }
  BLOCKSCALE_DEVICE static float element(const Row& row, int i) {
    return ptx::cvt_f32_bf16(row.at[i]);
  }
  BLOCKSCALE_DEVICE void load(const EpilogueMatrix& x, int64_t row, uint32_t columns,
                              float (&to)[kRowRunElements]) const {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kRowRunElements; ++i) {
      to[i] = column(i) < columns ? load_element(x, row * x.row_stride + column(i)) : 0.0f;
    }
  }
  BLOCKSCALE_DEVICE void store(const EpilogueMatrix& x, int64_t row, uint32_t columns,
                               const float (&sums)[kRowRunElements]) const {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kRowRunElements; ++i) {
      if (column(i) < columns) store_element(x, row * x.row_stride + column(i), sums[i]);
    }
  }
};

}  // namespace row_runs
}  // namespace blockscale
