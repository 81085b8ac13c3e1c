// Which FP8 kernel computes a product, and how it is divided among multiprocessors: a pure function
// of its size and of the chip, by a model of what each launch config takes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "blockscale/device.h"
#include "ops/gemm/kernels/sm90/fp8_config.h"

namespace blockscale::gemm_detail {

/// What the model depends on.
struct Fp8GemmSize {
  std::int64_t m = 0, n = 0, k = 0;  // positive, but for k, which may be 0
  std::int64_t batch = 1;
  Promotion promotion = Promotion::blocks;
  /// Whether D's columns may be computed by two launches: B's scales can be told apart every
  /// kFp8BlockK rows.
  bool may_split_columns = true;
  /// Whether K may be divided, as the number of rows suggests: the order of additions then depends
  /// on it.
  bool may_split = true;
  /// Whether scales are brought beside the operands, and not all left to the epilogue.
  bool loads_scales = true;
  /// Whether tensor copies can bring the scales, of the kernels that have them copied.
  bool may_copy_scales = false;
  /// Where D is quantized: columns that a block computes for 128 of the result, 256 with swiglu,
  /// which it takes in two sub-tiles. Else 0.
  std::int64_t quantized_columns = 0;

  /// Tiles that one block computes in turn for a result.
  std::int64_t sub_tiles() const { return std::max<std::int64_t>(1, quantized_columns / 128); }
  friend bool operator==(const Fp8GemmSize&, const Fp8GemmSize&) = default;
};

/// A kernel of kFp8GemmKernels with the size's promotion and kind of result, and its run-time
/// values.
struct Fp8LaunchConfig {
  int rows = 128;     // of a tile
  int columns = 128;  // of a tile
  std::uint32_t stages = 0;
  std::uint32_t split = 1;   // blocks of a cluster, each with a part of K
  std::uint32_t per_sm = 1;  // blocks that a multiprocessor holds at a time

  friend bool operator==(const Fp8LaunchConfig&, const Fp8LaunchConfig&) = default;
};

/// The kernel of a config; of kFp8GemmKernels, unless its tile is none of theirs.
Fp8GemmConfig kernel_of(const Fp8GemmSize& size, const Fp8LaunchConfig& config);

/// The product of `count` of D's columns from `first` on.
Fp8GemmSize columns_of(const Fp8GemmSize& size, std::int64_t first, std::int64_t count);

/// Columns that are not divided among blocks: where D's may be split.
std::int64_t least_columns(const Fp8GemmSize& size);

/// The first `columns` of D by one launch, the others by one that runs beside it: its blocks begin
/// where multiprocessors have no tile of the first any more, so that the tail wave costs as
/// much as its tiles are, not as much as a wave.
struct Fp8Heuristic {
  std::int64_t columns = 0;  // n where there is no second launch, else of least_columns
  Fp8LaunchConfig first;
  std::optional<Fp8LaunchConfig> rest;
  double expected_seconds = 0;
};

/// Every config that can compute the product on a chip; never empty.
std::vector<Fp8LaunchConfig> fp8_launch_configs(const Fp8GemmSize& size, const cuda::Chip& chip);

/// What is expected to be fastest. To find it takes longer than a launch: a thread
/// keeps those of the sizes that it asked for last.
Fp8Heuristic fp8_heuristic(const Fp8GemmSize& size, const cuda::Chip& chip);

/// As many stages as fit, with `beside` bytes of shared memory for something else; 0 if fewer than
/// 3 do.
std::uint32_t stages_that_fit(const Fp8GemmConfig& config, std::uint32_t split,
                              std::uint32_t per_sm, const cuda::Chip& chip, std::uint32_t beside);

/// What a product takes by one config.
double expected_seconds(const Fp8GemmSize& size, const Fp8LaunchConfig& config,
                        const cuda::Chip& chip);

/// The same by the GEMV, which takes as long as reading B.
double expected_gemv_seconds(const Fp8GemmSize& size);

/// Rows of A in a box, a multiple of 8.
std::int64_t a_rows_of(const Fp8GemmSize& size, const Fp8LaunchConfig& config);

/// Blocks of a launch by `config`: of all tiles where clusters divide K, else as many as run at a
/// time.
std::uint32_t grid_of(const Fp8GemmSize& size, const Fp8LaunchConfig& config,
                      const cuda::Chip& chip);

}  // namespace blockscale::gemm_detail
