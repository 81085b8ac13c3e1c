#include "ops/gemm/cpu/bf16/tiles.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>

#if defined(__x86_64__)
#include <immintrin.h>

#include "ops/common/simd/amx.h"
#include "ops/gemm/cpu/bf16/add_slab.h"
#endif

namespace blockscale::gemm_detail {

#if defined(__x86_64__)

// Functions of this file are called where uses_amx() says so.
#define BLOCKSCALE_AMX __attribute__((target("amx-tile,amx-bf16,avx512f")))

namespace {

/// The operand of LDTILECFG.
struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfiguration) == 64);

BLOCKSCALE_AMX void configure_tiles() {
  static constexpr TileConfiguration kConfiguration;
  _tile_loadconfig(&kConfiguration);
}
BLOCKSCALE_AMX void release_tiles() {
  _tile_release();
}

constexpr int kTileElements = 16 * 16;

/// Sums of 16 rows of B, or of 32, times 16 rows of A, or 32: tile 2 i + j is of B's i-th and A's
/// j-th 16 rows.
template <bool kTwoOfB, bool kTwoOfA>
BLOCKSCALE_AMX void sum_in_tiles(const PairProduct& p, float* tiles) {
  constexpr std::int64_t kPairs = 16;  // of a tile
  constexpr std::int64_t kRowBytes = 2 * PairRows::kDepth;
  constexpr std::int64_t kPairBytes = 4 * PairRows::kPanelRows;
  const std::uint16_t* b = p.b;
  const std::uint16_t* a = p.panel;
  // g++ 12 does not know that tiles are loaded from memory.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  _tile_zero(0);
  if constexpr (kTwoOfA) _tile_zero(1);
  if constexpr (kTwoOfB) _tile_zero(2);
  if constexpr (kTwoOfA && kTwoOfB) _tile_zero(3);
  for (std::int64_t i = 0; i < p.pairs; i += kPairs) {
    _tile_loadd(4, b, kRowBytes);
    _tile_loadd(6, a, kPairBytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTwoOfA) {
      _tile_loadd(7, a + 32, kPairBytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTwoOfB) {
      _tile_loadd(5, b + 16 * PairRows::kDepth, kRowBytes);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (kTwoOfA && kTwoOfB) _tile_dpbf16ps(3, 5, 7);
    b += 2 * kPairs;
    a += kPairs * 2 * PairRows::kPanelRows;
  }
  _tile_stored(0, tiles, 64);
  if constexpr (kTwoOfA) _tile_stored(1, tiles + kTileElements, 64);
  if constexpr (kTwoOfB) _tile_stored(2, tiles + 2 * kTileElements, 64);
  if constexpr (kTwoOfA && kTwoOfB) _tile_stored(3, tiles + 3 * kTileElements, 64);
}

BLOCKSCALE_AMX void multiply_and_add(const PairProduct& p, std::int64_t b_rows,
                                     std::int64_t a_rows) {
  alignas(64) float tiles[4 * kTileElements];
  if (b_rows > 16) {
    a_rows > 16 ? sum_in_tiles<true, true>(p, tiles) : sum_in_tiles<true, false>(p, tiles);
  } else {
    a_rows > 16 ? sum_in_tiles<false, true>(p, tiles) : sum_in_tiles<false, false>(p, tiles);
  }
  for (std::int64_t r = 0; r < b_rows; ++r) {
    for (std::int64_t v = 0; v < (a_rows > 16 ? 2 : 1); ++v) {
      const float* const from = tiles + (r / 16 * 2 + v) * kTileElements + r % 16 * 16;
      add_slab(p, r, v, _mm512_load_ps(from));
    }
  }
}

BLOCKSCALE_AMX void multiply_zeros(std::int64_t count) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (std::int64_t i = 0; i < count; ++i) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
}

}  // namespace

double multiply_tiles(std::int64_t count) {
  if (!uses_amx()) return 0;
  const Tiles tiles(true);
  multiply_zeros(count);
  return 4.0 * static_cast<double>(count) * (2 * kTileElements * 32);
}

Tiles::Tiles(bool use) : use_(use) {
  if (use_) configure_tiles();
}
Tiles::~Tiles() {
  if (use_) release_tiles();
}
void multiply_pairs_in_tiles(const PairProduct& p, std::int64_t b_rows, std::int64_t a_rows) {
  multiply_and_add(p, b_rows, a_rows);
}

#else

Tiles::Tiles(bool) : use_(false) {}
Tiles::~Tiles() = default;
void multiply_pairs_in_tiles(const PairProduct&, std::int64_t, std::int64_t) {
  std::abort();
}
double multiply_tiles(std::int64_t) {
  return 0;
}

#endif

}  // namespace blockscale::gemm_detail
