// How scales come to a plain kernel: in registers from one tile of K to the next.
#pragma once

#include "device/encode/scale.cuh"
#include "ops/gemm/kernels/plain_load.cuh"

namespace blockscale::plain {

/// Brings an operand's scales of a tile to shared memory: each thread some of them, in registers
/// from one tile to the next, so that they are on their way while a tile is multiplied.
template <PlainGemmConfig kConfig, int kOperand, class Order>
class Scales {
 public:
  BLOCKSCALE_DEVICE Scales(const PlainGemmParamsOf<Order>& p, const Place& place)
      : p_(p), x_(p.operands[kOperand]), count_(place.rows(kOperand).count), k_(place.k) {
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kSlots; ++i) {
      const uint32_t own = item_of(i).row;
      const uint32_t row = place.rows(kOperand).first + (own < count_ ? own : count_ - 1);
      const int64_t from = kMayLack ? row_of_a(p, row) : int64_t{row};
      if constexpr (kMayLack) has_[i] = from >= 0;
      offsets_[i] = place.matrix_of(kOperand) * x_.scales.batch_stride +
                    x_.scales.row_offset(from < 0 ? 0 : static_cast<uint32_t>(from));
    }
  }

  /// Begins to load those of tile `tile` of K. No branch stands between loads, which would wait.
  BLOCKSCALE_DEVICE void load(uint32_t tile) {
    if (x_.scales.data == nullptr) return;
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kSlots; ++i) {
      if (i == 1 && !has_second_slot()) return;
      const Item item = item_of(i);
      const uint32_t k = first_k(tile, item);
      const bool exists = item.row < count_ && has_k(k) && (!kMayLack || has_[i]);
      const int64_t at = offsets_[i] + x_.scales.k_offset(k >> x_.log2_block_k);
      const auto* const words = reinterpret_cast<const uint32_t*>(x_.scales.data);
      // What was loaded is not looked at here, where it would be waited for.
      bytes_[i] = ptx::ld_global_nc_u8_if(exists && x_.scales.bytes, x_.scales.data + at);
      words_[i] = ptx::ld_global_nc_if(exists && !x_.scales.bytes, words + at);
    }
  }

  /// Stores what load() brought, in f32; beyond K 0.
  BLOCKSCALE_DEVICE void store(uint32_t tile, SharedAddress to) const {
    BLOCKSCALE_UNROLL
    for (uint32_t i = 0; i < kSlots; ++i) {
      if (i == 1 && !has_second_slot()) return;
      const Item item = item_of(i);
      float scale = bit_cast<float>(words_[i]);
      if (x_.scale_format == Format::ue8m0) scale = decode<Format::ue8m0>(bytes_[i]);
      if (x_.scale_format == Format::ue4m3) scale = encoding::e4m3_value(bytes_[i] & 0x7Fu);
      if (x_.scales.data == nullptr) scale = 1.0f;
      if (!has_k(first_k(tile, item))) scale = 0.0f;
      const uint32_t row = item.row + (kOperand == 0 ? 0 : static_cast<uint32_t>(kConfig.rows));
      if (item.row < count_) ptx::st_shared(to + (item.segment * kRows + row) * 4, scale);
    }
  }

 private:
  static constexpr uint32_t kThreads = static_cast<uint32_t>(group_threads_of(kConfig));
  static constexpr uint32_t kRows = static_cast<uint32_t>(kConfig.rows + kConfig.columns);
  static constexpr uint32_t kOwnRows =
      static_cast<uint32_t>(kOperand == 0 ? kConfig.rows : kConfig.columns);
  static constexpr uint32_t kSlots =
      (kOwnRows * static_cast<uint32_t>(kConfig.depth) / 16 + kThreads - 1) / kThreads;
  static constexpr uint32_t kLog2Depth = kConfig.depth == 64 ? 6 : kConfig.depth == 128 ? 7 : 8;
  static_assert(kConfig.depth == 1 << kLog2Depth);

  /// Which scale a thread's slot is for.
  struct Item {
    uint32_t row, segment;  // of the tile
  };
  BLOCKSCALE_DEVICE Item item_of(uint32_t slot) const {
    const uint32_t log2_segments = kLog2Depth - p_.log2_segment;
    const uint32_t item = slot * kThreads + thread_of_group<kConfig>();
    return {item >> log2_segments, item & ((1u << log2_segments) - 1)};
  }
  /// Whether there are more scales than threads: one row of A has few.
  BLOCKSCALE_DEVICE bool has_second_slot() const {
    return count_ << (kLog2Depth - p_.log2_segment) > kThreads;
  }
  BLOCKSCALE_DEVICE uint32_t first_k(uint32_t tile, const Item& item) const {
    return tile * static_cast<uint32_t>(kConfig.depth) + (item.segment << p_.log2_segment);
  }

  /// Whether a segment has k that the product has.
  BLOCKSCALE_DEVICE bool has_k(uint32_t first) const {
    if constexpr (!kDividesK<Order>) return first < p_.k;
    return first < k_.end && first + (1u << p_.log2_segment) > k_.begin;
  }

  static constexpr bool kMayLack = kOperand == 0 && Order::kGathersRows;  // rows of A

  const PlainGemmParamsOf<Order>& p_;
  const PlainOperand& x_;
  uint32_t count_;  // rows that exist
  KRange k_;
  bool has_[kSlots];
  int64_t offsets_[kSlots];  // of rows
  uint32_t bytes_[kSlots] = {};
  uint32_t words_[kSlots] = {};
};

}  // namespace blockscale::plain
