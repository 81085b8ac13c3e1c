// Runs plans of products in the emulator, for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "blockscale/tensor.h"
#include "device/emulator/emulator.h"
#include "ops/gemm/cuda/fp4_plan.h"
#include "ops/gemm/cuda/plain_plan.h"
#include "ops/gemm/cuda/plan.h"
#include "ops/gemm/cuda/sm120/block_scaled_plan.h"
#include "ops/gemm/cuda/sm90/fp4_tiles_plan.h"

namespace blockscale::test {

/// Memory that begins so many bytes behind a multiple of 16: with none, as tensor copies need it.
class AlignedCopy {
 public:
  AlignedCopy(const void* data, std::int64_t bytes, std::int64_t odd) : bytes_(bytes), odd_(odd) {
    storage_.resize(static_cast<std::size_t>(bytes + odd) + 16);
    if (data != nullptr && bytes != 0) std::memcpy(at(), data, static_cast<std::size_t>(bytes));
  }
  std::uint8_t* at() {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    return storage_.data() + (16 - address % 16) % 16 + odd_;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_, odd_;
  std::vector<std::uint8_t> storage_;
};

/// A copy of an operand's values.
inline AlignedCopy copy_of_values(const ScaledTensorView& x, std::int64_t odd = 0) {
  return {x.values, x.batch * x.value_batch_stride - (x.value_row_stride - x.k), odd};
}

/// From a view's first scale to its last.
std::int64_t scale_bytes_of(const ScaledTensorView& x);

/// A kernel of fp8_gemm_kernel_specs(), of kFp4GemmKernels, of kFp4TilesKernels, of
/// kBlockScaledKernels or of kPlainGemmKernels, as a host function: each family's has a file of its
/// own.
void run_kernel(std::size_t kernel, const Fp8GemmParams& params);
void run_kernel(std::size_t kernel, const Fp8GemvParams& params);
void run_kernel(std::size_t kernel, const AlignRowsParams& params);
void run_kernel(std::size_t kernel, const Fp4GemmParams& params);
void run_kernel(std::size_t kernel, const Fp4TilesParams& params);
void run_kernel(std::size_t kernel, const BlockScaledParams& params);
void run_kernel(std::size_t kernel, const PlainGemmParams& params);

/// The launches of tiles of a plan.
inline std::vector<const gemm_detail::GemmStep*> tile_steps(const gemm_detail::Fp8GemmPlan& plan) {
  std::vector<const gemm_detail::GemmStep*> steps;
  for (const gemm_detail::GemmStep& step : plan.steps) {
    if (step.of<Fp8GemmParams>() != nullptr) steps.push_back(&step);
  }
  return steps;
}

/// Runs a plan's steps in their order. `buffers` are what the product reads and
/// writes. True if the emulator has nothing to report.
bool emulate(gemm_detail::Fp8GemmPlan& plan, std::vector<emulator::Buffer> buffers,
             const emulator::Options& options);
/// The same, the workspace among the buffers: rows of it that are an output of conversions are an
/// input of what is behind them.
bool emulate(gemm_detail::Fp4TilesPlan& plan, std::vector<emulator::Buffer> buffers,
             const emulator::Options& options);

}  // namespace blockscale::test
