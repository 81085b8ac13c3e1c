// Runs plans of grouped products in the emulator, for tests.
#pragma once

#include <cstddef>
#include <vector>

#include "device/emulator/emulator.h"
#include "ops/grouped_gemm/cuda/plan.h"

namespace blockscale::test {

/// A kernel of a step as a host function: each family's has a file of its own.
void run_grouped_kernel(std::size_t kernel, const Fp8GroupedParams& params);
void run_grouped_kernel(std::size_t kernel, const Fp8FewRowsParams& params);
void run_grouped_kernel(std::size_t kernel, const Fp4TilesParams& params);
void run_grouped_kernel(std::size_t kernel, const Fp4FewRowsParams& params);
void run_grouped_kernel(std::size_t kernel, const BlockScaledParams& params);
void run_grouped_kernel(std::size_t kernel, const PlainGroupedParams& params);
void run_grouped_kernel(std::size_t kernel, const PlainKGroupedParams& params);
void run_grouped_kernel(std::size_t kernel, const GroupedTransformParams& params);
void run_grouped_kernel(std::size_t kernel, const CopyRowsParams& params);

/// What the emulator has to say of one step.
emulator::Report report_of(grouped_gemm_detail::GroupedStep& step, int architecture,
                           const std::vector<emulator::Buffer>& buffers,
                           const emulator::Options& options);

/// Runs a plan's steps in their order. `buffers` are what the product reads and writes. True if the
/// emulator has nothing to report.
bool emulate(grouped_gemm_detail::GroupedPlan& plan, const std::vector<emulator::Buffer>& buffers,
             const emulator::Options& options);

/// The same of a product's plan, in a workspace of its own.
bool emulate(const GroupedGemmArguments& validated, const cuda::Chip& chip,
             std::vector<emulator::Buffer> buffers, const emulator::Options& options);

}  // namespace blockscale::test
