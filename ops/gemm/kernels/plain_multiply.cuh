// The plain kernels' step 3: products of decoded elements, segment by segment, times their scales.
#pragma once

#include "device/ptx/ldmatrix.h"
#include "device/ptx/mma.h"
#include "ops/gemm/kernels/plain_load.cuh"

namespace blockscale::plain {

/// A warp's place in a tile, and its sums.
template <PlainGemmConfig kConfig>
class Multiplier {
 public:
  static constexpr int kM = kConfig.rows / kConfig.warps_m / 16;    // products of 16 rows
  static constexpr int kN = kConfig.columns / kConfig.warps_n / 8;  // x 8 columns
  static_assert(kN % 2 == 0);

  /// `rows` of the tile exist.
  BLOCKSCALE_DEVICE explicit Multiplier(uint32_t rows) : lane_(ptx::laneid()), rows_(rows) {
    const uint32_t warp = kConfig.warps_k == 1 ? device::warp_index() : 0;  // of the group
    row_ = warp % kConfig.warps_m * (16 * kM);
    column_ = warp / kConfig.warps_m * (8 * kN);
  }

  /// Adds the products of one decoded tile, whose parts begin at `a` and `b`.
  template <class Params>
  BLOCKSCALE_DEVICE void multiply(const Params& p, const PlainMemory& memory, SharedAddress a,
                                  SharedAddress b, SharedAddress scales) {
    const PlainOperand &x = p.operands[0], &y = p.operands[1];
    if constexpr (kConfig.form == Format::f16) {
      multiply_parts(p.log2_segment, a, b, scales, false);
    } else {
      BLOCKSCALE_NO_UNROLL
      for (uint32_t i = 0; i < x.parts; ++i) {
        BLOCKSCALE_NO_UNROLL
        for (uint32_t j = 0; j < y.parts && i + j < kPlainPartSum; ++j) {
          multiply_parts(p.log2_segment, a + i * memory.a_part_bytes, b + j * memory.b_part_bytes,
                         scales, i + j > 0);
        }
      }
    }
  }

  /// visit(row, column, two neighbouring sums) of this warp's part of the tile.
  template <class Visit>
  BLOCKSCALE_DEVICE void for_each_pair(const Visit& visit) {
    const uint32_t lane = ptx::laneid_here();
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kM; ++i) {
      BLOCKSCALE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const uint32_t row = row_ + static_cast<uint32_t>(16 * i + 8 * half) + lane / 4;
        BLOCKSCALE_UNROLL
        for (int j = 0; j < kN; ++j) {
          const uint32_t column = column_ + static_cast<uint32_t>(8 * j) + lane % 4 * 2;
          visit(row, column, sums_[i][j][2 * half], sums_[i][j][2 * half + 1]);
        }
      }
    }
  }

 private:
  static constexpr ptx::MmaElement kElement =
      kConfig.form == Format::f16 ? ptx::MmaElement::f16 : ptx::MmaElement::bf16;
  static constexpr uint32_t kRows = static_cast<uint32_t>(kConfig.rows + kConfig.columns);
  using Two = device::Vector<float, 2>;

  /// Infinities and NaN become 0: they count in the product of first parts alone, as an infinity
  /// times another part of 0 would be NaN.
  template <int kCount>
  BLOCKSCALE_DEVICE static void keep_finite(uint32_t (&words)[kCount]) {
    BLOCKSCALE_UNROLL
    for (uint32_t& word : words) {
      const uint32_t carries = ((word & 0x7F807F80u) + 0x00800080u) & 0x80008000u;
      word &= ~((carries >> 15) * 0xFFFFu);
    }
  }

  BLOCKSCALE_DEVICE void multiply_parts(uint32_t log2_segment, SharedAddress a, SharedAddress b,
                                        SharedAddress scales, bool finite) {
    if (log2_segment == 4) {
      multiply_segments<1>(a, b, scales, finite);
    } else {
      multiply_segments<2>(a, b, scales, finite);
    }
  }

  /// Segments of kSixteens times 16 of K, as many as an instruction multiplies.
  template <int kSixteens>
  BLOCKSCALE_DEVICE void multiply_segments(SharedAddress a, SharedAddress b, SharedAddress scales,
                                           bool finite) {
    constexpr uint32_t kSegments = static_cast<uint32_t>(kConfig.depth / (16 * kSixteens));
    BLOCKSCALE_NO_UNROLL
    for (uint32_t s = 0; s < kSegments; ++s) {
      const uint32_t first_chunk = s * static_cast<uint32_t>(2 * kSixteens);
      const SharedAddress of_segment = scales + s * (kRows * 4);
      Segment<kSixteens> segment;
      load_a(segment, a, first_chunk, finite);
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kM; ++i) {
        const uint32_t row = row_ + static_cast<uint32_t>(16 * i) + lane_ / 4;
        segment.scales[i][0] = ptx::ld_shared<float>(of_segment + row * 4);
        segment.scales[i][1] = ptx::ld_shared<float>(of_segment + (row + 8) * 4);
      }
      BLOCKSCALE_UNROLL
      for (int j = 0; j < kN; j += 2) {
        multiply_columns(segment, b, of_segment, first_chunk, j, finite);
      }
    }
  }

  /// A's elements and scales of a segment, in the rows of this warp.
  template <int kSixteens>
  struct Segment {
    ptx::MmaFragmentA a[kM][kSixteens];
    float scales[kM][2];  // of rows lane / 4 and 8 below
  };

  template <int kSixteens>
  BLOCKSCALE_DEVICE void load_a(Segment<kSixteens>& segment, SharedAddress a, uint32_t first_chunk,
                                bool finite) const {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < kM; ++i) {
      uint32_t row = row_ + static_cast<uint32_t>(16 * i) + lane_ % 16;
      if constexpr (kConfig.warps_k > 1)
        row = row < rows_ ? row : rows_ - 1;  // there are no others
      BLOCKSCALE_UNROLL
      for (int x = 0; x < kSixteens; ++x) {
        const uint32_t chunk = first_chunk + static_cast<uint32_t>(2 * x) + lane_ / 16;
        const auto four = ptx::ldmatrix<4>(a + chunk_offset<kConfig>(row, chunk));
        BLOCKSCALE_UNROLL
        for (int w = 0; w < 4; ++w) segment.a[i][x].value[w] = four.value[w];
        if (finite) keep_finite(segment.a[i][x].value);
      }
    }
  }

  /// The products of a segment and of columns 8 j to 8 j + 15.
  template <int kSixteens>
  BLOCKSCALE_DEVICE void multiply_columns(const Segment<kSixteens>& segment, SharedAddress b,
                                          SharedAddress scales, uint32_t first_chunk, int j,
                                          bool finite) {
    const uint32_t column = column_ + static_cast<uint32_t>(8 * j);
    ptx::MmaFragmentB columns[2][kSixteens];
    BLOCKSCALE_UNROLL
    for (int x = 0; x < kSixteens; ++x) {
      const uint32_t row = column + lane_ % 8 + lane_ / 16 * 8;
      const uint32_t chunk = first_chunk + static_cast<uint32_t>(2 * x) + lane_ / 8 % 2;
      auto four = ptx::ldmatrix<4>(b + chunk_offset<kConfig>(row, chunk));
      if (finite) keep_finite(four.value);
      BLOCKSCALE_UNROLL
      for (int w = 0; w < 4; ++w) columns[w / 2][x].value[w % 2] = four.value[w];
    }
    BLOCKSCALE_UNROLL
    for (int c = 0; c < 2; ++c) {
      const uint32_t at = static_cast<uint32_t>(kConfig.rows + 8 * c) + column + lane_ % 4 * 2;
      const Two of_columns = ptx::ld_shared<Two>(scales + at * 4);
      BLOCKSCALE_UNROLL
      for (int i = 0; i < kM; ++i) {
        float(&sums)[4] = sums_[i][j + c];
        ptx::MmaAccumulator products = {};
        BLOCKSCALE_UNROLL
        for (int x = 0; x < kSixteens; ++x) {
          ptx::mma_sync_m16n8<kElement>(products, segment.a[i][x], columns[c][x]);
        }
        BLOCKSCALE_UNROLL
        for (int v = 0; v < 4; ++v) {
          const float scaled = ptx::mul_rn(products.value[v], segment.scales[i][v / 2]);
          sums[v] = ptx::fma_rn(scaled, of_columns.at[v % 2], sums[v]);
        }
      }
    }
  }

  uint32_t lane_, rows_, row_, column_;
  float sums_[kM][kN][4] = {};
};

}  // namespace blockscale::plain
