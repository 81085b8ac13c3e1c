#include "ops/gemm/cpu/plan.h"

#include <algorithm>

#include "core/config.h"

namespace blockscale::gemm_detail {
namespace {

// Rows of A that one decoding of B serves. 512 rows make the decoding a few percent of the
// multiplications, and a tile of 512 x 64 doubles fits an L2 cache.
constexpr std::int64_t kMaxTaskRows = 256;
// With fewer columns than this many tasks, rows are divided further, down to kMinTaskRows.
constexpr std::int64_t kMinTasks = 32;
constexpr std::int64_t kMinTaskRows = 128;
// Largest decoded band of A, in f32 elements (16 MiB), unless kMinBandRows rows take more.
constexpr std::int64_t kMaxBandElements = std::int64_t{1} << 22;
constexpr std::int64_t kMinBandRows = 16;

}  // namespace

CpuPlan cpu_plan(std::int64_t m, std::int64_t n, std::int64_t k) {
  CpuPlan plan;
  plan.slabs = ceil_div(k, kSlab);
  const std::int64_t row_elements = std::max<std::int64_t>(1, plan.slabs) * kSlab;
  const std::int64_t fitting = kMaxBandElements / row_elements / kMinBandRows * kMinBandRows;
  plan.band_rows = std::min(m, std::clamp(fitting, kMinBandRows, kMaxTaskRows));
  plan.task_rows = plan.band_rows;
  const std::int64_t column_tasks = std::max<std::int64_t>(1, ceil_div(n, kTileColumns));
  if (column_tasks < kMinTasks) {
    const std::int64_t row_tasks = ceil_div(kMinTasks, column_tasks);
    const std::int64_t rows = ceil_div(plan.band_rows, row_tasks);
    const std::int64_t rounded = ceil_div(rows, kMinTaskRows) * kMinTaskRows;
    plan.task_rows = std::min(plan.band_rows, rounded);
  }
  return plan;
}

std::string CpuPlan::to_string() const {
  return "band_rows=" + std::to_string(band_rows) + " task_rows=" + std::to_string(task_rows) +
         " task_columns=" + std::to_string(kTileColumns) + " slabs=" + std::to_string(slabs);
}

std::string CpuPlan::describe(const std::string& a, const std::string& b, CpuKernel kernel) const {
  const std::string columns = std::to_string(kTileColumns);
  if (kernel == CpuKernel::few_rows) {
    return "few rows (at most " + std::to_string(kFewRows) + ": bound by reading B): A (" + a +
           ") decoded to f32; tasks of " + columns + " rows of B (" + b +
           "), which read it as it lies, once, and scale sums of blocks";
  }
  if (kernel == CpuKernel::bf16_rows) {
    return "bf16 rows (at most " + std::to_string(kFewRows) +
           ": bound by reading B; AVX-512 BF16 here, and A exact in it): A (" + a +
           ") in bf16; tasks of " + columns + " rows of B (" + b +
           "), which read it as it lies, once, look up its codes in bf16 and scale sums of blocks";
  }
  const std::string tasks = std::to_string(band_rows) + " rows at a time; tasks of " +
                            std::to_string(task_rows) + " x " + columns + " of D, each of which ";
  if (kernel == CpuKernel::pairs) {
    return "bf16 pairs (more than " + std::to_string(kFewRowsBesidePairs) +
           " rows, elements that bf16 holds, and AVX-512 BF16 here): A (" + a +
           ") as panels of bf16, " + tasks + "decodes its B (" + b +
           ") to bf16, a few rows at a time, and sums chains of k in f32";
  }
  if (kernel == CpuKernel::integers) {
    return "integers (FP4 on both sides, and VNNI here): A (" + a + ") as bytes, " + tasks +
           "turns its B (" + b + ") into bytes, sums blocks exactly and scales them in f32";
  }
  return "panels: A (" + a + ") decoded to f32, " + tasks + "decodes its B (" + b + ") in " +
         std::to_string(slabs) + " slabs of " + std::to_string(kSlab) + " of k";
}

}  // namespace blockscale::gemm_detail
