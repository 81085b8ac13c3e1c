// How a product of FP8 operands is divided among multiprocessors: a pure function of its size and
// of the chip, by a model of what each choice takes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "blockscale/device.h"
#include "ops/gemm/kernels/config.h"

namespace blockscale::gemm_detail {

/// What a division depends on.
struct Fp8GemmSize {
  std::int64_t m = 0, n = 0, k = 0;  // positive, but for k, which may be 0
  std::int64_t batch = 1;
  Promotion promotion = Promotion::blocks;
  /// Whether D's columns may be computed by two launches: B's scales can be told apart every
  /// kFp8BlockK rows.
  bool may_cut = true;
  /// Whether K may be divided, as the number of rows suggests: the order of additions then depends
  /// on it.
  bool may_split = true;
  /// Whether tensor copies can bring the scales, of the kernels that have them copied.
  bool may_copy_scales = false;
  /// Where D is quantized: columns that a block computes for 128 of the result, 256 with swiglu,
  /// which it takes in two tiles. Else 0.
  std::int64_t quantized_columns = 0;

  /// Whether tiles of so many rows and columns, with K divided among `split` blocks, have their
  /// scales copied: those that products of many rows are made of.
  bool copies_scales(int rows, int columns, std::uint32_t split) const {
    return may_copy_scales && quantized_columns == 0 && split == 1 &&
           (rows == 192 || (rows == 128 && columns == 128));
  }
  std::int64_t parts() const { return std::max<std::int64_t>(1, quantized_columns / 128); }
  friend bool operator==(const Fp8GemmSize&, const Fp8GemmSize&) = default;
};

/// A kernel of kFp8GemmKernels with the size's promotion and kind of result, and its run-time
/// values.
struct Fp8GemmChoice {
  int rows = 128;     // of a tile
  int columns = 128;  // of a tile
  std::uint32_t stages = 0;
  std::uint32_t split = 1;   // blocks of a cluster, each with a part of K
  std::uint32_t per_sm = 1;  // blocks that a multiprocessor holds at a time

  friend bool operator==(const Fp8GemmChoice&, const Fp8GemmChoice&) = default;
};

/// Columns that are not divided among blocks: where D's may be cut.
std::int64_t least_columns(const Fp8GemmSize& size);

/// The first `columns` of D by one launch, the others by one that runs beside it: its blocks begin
/// where multiprocessors have no tile of the first any more, so that a last wave of tiles costs as
/// much as its tiles are, not as much as a wave.
struct Fp8GemmDivision {
  std::int64_t columns = 0;  // n where there is no second launch, else of least_columns
  Fp8GemmChoice first;
  std::optional<Fp8GemmChoice> rest;
  double expected_seconds = 0;
};

/// Every choice that can compute the product on a chip; never empty.
std::vector<Fp8GemmChoice> fp8_gemm_choices(const Fp8GemmSize& size, const cuda::Chip& chip);

/// The division that is expected to be fastest. To find it takes longer than a launch: a thread
/// keeps those of the sizes that it asked for last.
Fp8GemmDivision divide_fp8_gemm(const Fp8GemmSize& size, const cuda::Chip& chip);

/// What a product takes by one choice.
double expected_seconds(const Fp8GemmSize& size, const Fp8GemmChoice& choice,
                        const cuda::Chip& chip);

/// The same by the kernel for one row, which takes as long as reading B.
double expected_row_seconds(const Fp8GemmSize& size);

/// Rows of A in a box, a multiple of 8.
std::int64_t a_rows_of(const Fp8GemmSize& size, const Fp8GemmChoice& choice);

/// Blocks of a launch by `choice`: of all tiles where clusters divide K, else as many as run at a
/// time.
std::uint32_t grid_of(const Fp8GemmSize& size, const Fp8GemmChoice& choice, const cuda::Chip& chip);

}  // namespace blockscale::gemm_detail
