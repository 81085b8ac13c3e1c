// Products of bf16 pairs in AMX's tiles: the layer below bf16-inl.h on CPUs that have them.
#pragma once

#include <cstdint>

#include "ops/gemm/cpu/task.h"

namespace blockscale::gemm_detail {

/// What a call of a kernel multiplies: rows of B PairRows::kDepth apart, and a panel of A, (pair,
/// row of A); and where their sums lie, rows of B `pitch` apart.
struct PairProduct {
  const std::uint16_t* b = nullptr;
  const std::uint16_t* panel = nullptr;
  std::int64_t pairs = 0;            // a multiple of 16
  const float* a_factors = nullptr;  // of kPanelRows rows; null: both scales are folded
  const float* b_factors = nullptr;
  float* sums = nullptr;
  std::int64_t pitch = 0;
};

/// Rows of B of a call: two tiles of 16.
inline constexpr std::int64_t kTiledRows = 32;

/// While it lives, and only if `use`, this thread's tiles have 16 rows of 64 bytes.
class Tiles {
 public:
  explicit Tiles(bool use);
  ~Tiles();
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  bool use_;
};

/// Adds the products of `b_rows` rows of B, for which `p` has room for kTiledRows, and of 16 rows
/// of A, or of 32 if `a_rows` is larger. Needs Tiles.
void multiply_pairs_in_tiles(const PairProduct& p, std::int64_t b_rows, std::int64_t a_rows);

/// Multiplies and adds four pairs of tiles `count` times. Returns the operations, or 0, at once,
/// where no product uses tiles.
double multiply_tiles(std::int64_t count);

}  // namespace blockscale::gemm_detail
