// What the warps of a row tell each other, where several of them hold it.
#pragma once

#include "core/divisor.h"
#include "device/kernel.h"
#include "device/ptx/barrier.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "device/vector.h"
#include "ops/quantize/kernels/config.h"

namespace blockscale::quantizer {

/// A warp's place among the rows of its CTA, and what the warps of a row tell each other:
/// a word each, through shared memory from its beginning on. Two buffers for the rows of a tile: so
/// that one barrier lies between writing a word and reading it, and that of the next exchange
/// between reading it and writing it again.
class RowExchange {
  using Words = device::Vector<uint32_t, 4>;
  static constexpr uint32_t kRowBytes = 4 * kRowMostWarps;
  static constexpr uint32_t kBufferBytes = kQuantizeSharedBytes / 2;

 public:
  BLOCKSCALE_DEVICE explicit RowExchange(const Divisor& row_warps) : row_warps_(row_warps) {
    // Shared memory begins at a multiple of 1024 bytes: the word's address says whose it is.
    const uint32_t warp = ptx::tid_x() / 32;
    word_ = device::shared_base() +
            (row_warps.quotient(warp) * kRowBytes + row_warps.remainder(warp) * 4);
  }

  BLOCKSCALE_DEVICE uint32_t row_of_tile() const { return word_.value % kBufferBytes / kRowBytes; }
  BLOCKSCALE_DEVICE uint32_t warp_of_row() const { return word_.value % kRowBytes / 4; }

  /// Whether the thread is the first of its row.
  BLOCKSCALE_DEVICE bool is_first_lane() const {
    return warp_of_row() == 0 && ptx::tid_x() % 32 == 0;
  }

  /// Each warp gives a word. Calls fold(words) for kCount words of consecutive warps at a time, the
  /// first first; those of warps that do not exist are 0. Collective of the CTA.
  template <uint32_t kCount, class Fold>
  BLOCKSCALE_DEVICE void exchange(uint32_t word, const Fold& fold) {
    static_assert(kRowMostWarps % kCount == 0);
    if (row_warps_.divisor == 1) {
      const uint32_t words[kCount] = {word};
      fold(words);
      return;
    }
    word_.value ^= kBufferBytes;
    const uint32_t lane = ptx::tid_x() % 32;
    const ptx::SharedAddress row = {word_.value & ~(kRowBytes - 1)};
    // The row's first warp writes those of warps that do not exist.
    const bool is_nobodys =
        warp_of_row() == 0 && lane >= row_warps_.divisor && lane < uint32_t{kRowMostWarps};
    if (is_nobodys) ptx::st_shared(row + 4 * lane, 0u);
    if (lane == 0) ptx::st_shared(word_, word);
    ptx::barrier_sync_all();
    const auto fold_from = [&](uint32_t first) {
      uint32_t words[kCount];
      BLOCKSCALE_UNROLL
      for (uint32_t i = 0; i < kCount; i += 4) {
        const Words four = ptx::ld_shared<Words>(row + 4 * (first + i));
        BLOCKSCALE_UNROLL
        for (uint32_t j = 0; j < 4; ++j) words[i + j] = four.at[j];
      }
      fold(words);
    };
    fold_from(0);
    if constexpr (kCount < kRowMostWarps) {
      if (row_warps_.divisor <= kCount) return;
      BLOCKSCALE_UNROLL
      for (uint32_t first = kCount; first < kRowMostWarps; first += kCount) fold_from(first);
    }
  }

  /// The largest of a word of each of the row's lanes.
  BLOCKSCALE_DEVICE uint32_t largest(uint32_t of_lane) {
    uint32_t largest = 0;
    exchange<8>(ptx::redux_sync_max(ptx::kFullMask, of_lane), [&](const uint32_t(&words)[8]) {
      BLOCKSCALE_UNROLL
      for (const uint32_t word : words) largest = word > largest ? word : largest;
    });
    return largest;
  }

 private:
  const Divisor& row_warps_;  // a kernel parameter, which takes no register
  ptx::SharedAddress word_;   // the warp's, in the buffer that was used last
};

}  // namespace blockscale::quantizer
