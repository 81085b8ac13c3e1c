// A copy of an operand's rows that begin where tensor copies can take them, and take them fast: at
// multiples of 128 bytes. For operands that lie otherwise; a warp copies a row, so it serves long
// rows best.
#pragma once

#include "device/kernel.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"

namespace blockscale {

struct AlignRowsParams {
  const uint8_t* from = nullptr;
  uint8_t* to = nullptr;        // a multiple of 16; of 128, if the copy is to be fast
  int64_t from_row_stride = 0;  // in bytes, as all here
  int64_t from_batch_stride = 0;
  int64_t rows = 0;  // of a matrix
  int64_t batch = 0;
  int64_t bytes = 0;  // of a row

  /// Between the copy's rows, which follow one another through the batch.
  BLOCKSCALE_HD int64_t to_row_stride() const { return (bytes + 127) / 128 * 128; }
};

inline constexpr int kAlignRowsThreads = 256;

namespace align_rows {

using Bytes16 = device::Vector<uint32_t, 4>;

/// By a warp: a row of whole vectors, of which each lane has kAhead on their way.
BLOCKSCALE_DEVICE void copy_vectors(const uint8_t* from, uint8_t* to, int64_t bytes) {
  constexpr int kAhead = 8, kStep = 32 * 16;
  BLOCKSCALE_NO_UNROLL
  for (int64_t at = ptx::laneid() * 16; at < bytes; at += kAhead * kStep) {
    Bytes16 loaded[kAhead];
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      loaded[i] = ptx::ld_global_nc_if(at + i * kStep < bytes,
                                       reinterpret_cast<const Bytes16*>(from + at + i * kStep));
    }
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (at + i * kStep < bytes) {
        ptx::st_global(reinterpret_cast<Bytes16*>(to + at + i * kStep), loaded[i]);
      }
    }
  }
}

}  // namespace align_rows

BLOCKSCALE_DEVICE void align_rows_kernel(const AlignRowsParams& p) {
  using align_rows::Bytes16;
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  constexpr int64_t kWarps = kAlignRowsThreads / 32;
  const int64_t step = kWarps * ptx::nctaid_x();
  for (int64_t row = kWarps * ptx::ctaid_x() + device::warp_index(); row < p.rows * p.batch;
       row += step) {
    const uint8_t* const from =
        p.from + row / p.rows * p.from_batch_stride + row % p.rows * p.from_row_stride;
    uint8_t* const to = p.to + row * p.to_row_stride();
    if (reinterpret_cast<uint64_t>(from) % 16 == 0 && p.bytes % 16 == 0) {
      align_rows::copy_vectors(from, to, p.bytes);
      continue;
    }
    for (int64_t at = ptx::laneid() * 16; at < p.bytes; at += 32 * 16) {
      Bytes16 bytes = {};
      BLOCKSCALE_UNROLL
      for (int i = 0; i < 16; ++i) {
        if (at + i >= p.bytes) break;
        bytes.at[i / 4] |= uint32_t{ptx::ld_global(from + at + i)} << i % 4 * 8;
      }
      ptx::st_global(reinterpret_cast<Bytes16*>(to + at), bytes);
    }
  }
}

}  // namespace blockscale
