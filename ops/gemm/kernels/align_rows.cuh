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

BLOCKSCALE_DEVICE void align_rows_kernel(const AlignRowsParams& p) {
  using Bytes16 = device::Vector<uint32_t, 4>;
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  constexpr int64_t kWarps = kAlignRowsThreads / 32;
  const int64_t step = kWarps * ptx::nctaid_x();
  for (int64_t row = kWarps * ptx::ctaid_x() + device::warp_index(); row < p.rows * p.batch;
       row += step) {
    const uint8_t* const from =
        p.from + row / p.rows * p.from_batch_stride + row % p.rows * p.from_row_stride;
    uint8_t* const to = p.to + row * p.to_row_stride();
    const bool vectors = reinterpret_cast<uint64_t>(from) % 16 == 0 && p.bytes % 16 == 0;
    for (int64_t at = ptx::laneid() * 16; at < p.bytes; at += 32 * 16) {
      Bytes16 bytes = {};
      if (vectors) {
        bytes = ptx::ld_global(reinterpret_cast<const Bytes16*>(from + at));
      } else {
        BLOCKSCALE_UNROLL
        for (int i = 0; i < 16; ++i) {
          if (at + i >= p.bytes) break;
          bytes.at[i / 4] |= uint32_t{ptx::ld_global(from + at + i)} << i % 4 * 8;
        }
      }
      ptx::st_global(reinterpret_cast<Bytes16*>(to + at), bytes);
    }
  }
}

}  // namespace blockscale
