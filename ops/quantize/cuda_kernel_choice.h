// Which kernels of the list take a quantiser's problem, and with which tiles: every threshold that
// was measured stands in cuda_kernel_choice.cpp or, as a configuration, in kernels_sm90.h. (Those
// of rows and columns: rows_and_columns_cuda_{plan,parts}.cpp.)
#pragma once

#include <cstdint>

#include "ops/quantize/cuda_plan.h"
#include "ops/quantize/kernels_sm90.h"
#include "ops/quantize/validate.h"

namespace blockscale::quantize_detail {

/// Whether a kernel is followed by another one of its plan, which may always start at once.
constexpr bool comes_first(QuantizeKernel kernel) {
  return kernel == QuantizeKernel::maximum || kernel == QuantizeKernel::norm ||
         kernel == QuantizeKernel::clear;
}

/// Index of the kernel that agrees with these fields; the others are its tuning.
int find_kernel(QuantizeKernel kernel, Format input, Format element, ScaleRule rule, int block,
                InputTransform transform, bool table = false, bool large = false);

/// Warps that hold a row of `columns`, of a kernel that holds_rows.
std::int64_t row_warps(const QuantizeConfig& c, std::int64_t columns);

/// The choices for one problem. Its parameters are as quantize_params makes them; a plan may go on
/// to fill in what these do not have.
class KernelChoice {
 public:
  KernelChoice(const QuantizeArguments& a, const QuantizeParams& params, const PlanDevice& device,
               const PlanTuning& tuning)
      : a_(a), params_(params), device_(device), tuning_(tuning) {}

  /// Index of the kernel for the problem's input, in the form that takes its shape and is the
  /// fastest of those that do: with a table or without, for large inputs or for small ones.
  int kernel_of(QuantizeKernel kind, Format element, ScaleRule rule, int block) const;

  /// A kernel's configuration. That of the plan's last one may be tuned.
  QuantizeConfig config_of(int kernel) const;

  /// Tiles of the kernels whose threads hold chunks of consecutive rows.
  TileGrid chunk_grid(const QuantizeConfig& c, std::int64_t rows, std::int64_t columns) const;

  /// Whether a kernel that is launched with `p` prefetches (QuantizeParams::prefetches).
  bool prefetches(const QuantizeConfig& c, const QuantizeParams& p) const;

  /// Whether rms_norm with blocks of several rows reads x once, by thread blocks that wait for each
  /// other, as far as its rows and its size are concerned.
  bool reads_stripes() const;

  /// Thread blocks of a `maximum` kernel, at most: no more than most_maxima.
  std::int64_t most_thread_blocks(const QuantizeConfig& c, std::int64_t tiles) const;

  /// Whether the next kernel in the stream may start while the plan's last one runs.
  bool lets_next_start() const;

 private:
  std::int64_t values() const { return a_.out.batch * a_.out.rows * a_.out.k; }
  std::uint32_t log2_chunks_of(std::int64_t chunks, const QuantizeConfig& c) const;
  bool is_large(const QuantizeConfig& small) const;
  bool may_load_at_once(const QuantizeConfig& c) const;
  bool may_stream_rows(const QuantizeConfig& c) const;
  bool has_operands_of_x() const;
  bool wants_table(const QuantizeConfig& c) const;
  bool fills_stripes() const;

  const QuantizeArguments& a_;
  const QuantizeParams& params_;
  const PlanDevice& device_;
  const PlanTuning& tuning_;
};

}  // namespace blockscale::quantize_detail
