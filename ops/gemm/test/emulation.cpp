#include "ops/gemm/test/emulation.h"

#include <gtest/gtest.h>

#include <cstddef>

#include "device/emulator/tensor_map.h"
#include "ops/gemm/kernels/sm90/fp8_entry.cuh"

namespace blockscale::test {
namespace {

template <int kIndex = 0>
void run_kernel(int index, const Fp8GemmParams& params) {
  if constexpr (kIndex < Fp8GemmKernelList::kCount) {
    if (index == kIndex) {
      fp8_gemm_kernel<kFp8GemmKernels.at[kIndex]>(params);
    } else {
      run_kernel<kIndex + 1>(index, params);
    }
  }
}

void find_tensor_maps(gemm_detail::Fp8GemmLaunch& launch) {
  const auto encode = [](const TensorMapDescription& description, TensorMap& map) {
    if (description.rank != 0) map = emulator::encode_tensor_map(description);
  };
  Fp8GemmParams& p = launch.params;
  encode(launch.a, p.a);
  encode(launch.a_last.rank == 0 ? launch.a : launch.a_last, p.a_last);
  encode(launch.b, p.b);
  encode(launch.b_second.rank == 0 ? launch.b : launch.b_second, p.b_second);
  encode(launch.a_scales, p.a_scale_map);
  encode(launch.b_scales, p.b_scale_map);
  encode(launch.d, p.d);
}

bool is_ok(const emulator::Report& report) {
  EXPECT_TRUE(report.ok()) << report.text();
  return report.ok();
}

}  // namespace

std::int64_t scale_bytes_of(const ScaledTensorView& x) {
  const ScaleGrid grid = scale_grid(x.recipe, x.rows, x.k);
  const std::int64_t size = format_traits(recipe_traits(x.recipe).scale).bits / 8;
  return ((x.batch - 1) * x.scale_batch_stride +
          scale_count(x.layout, grid.rows, grid.columns, x.scale_leading_stride)) *
         size;
}

bool emulate(gemm_detail::Fp8GemmPlan& plan, std::vector<emulator::Buffer> buffers,
             const emulator::Options& options) {
  for (std::size_t i = 0; i < plan.copy_count; ++i) {
    const gemm_detail::OperandCopy& copy = plan.copies[i];
    const auto bytes = static_cast<std::size_t>(copy.params.rows * copy.params.batch *
                                                copy.params.to_row_stride());
    buffers.push_back(
        emulator::buffer("workspace", copy.params.to, bytes, emulator::BufferUse::output));
    const emulator::Report report =
        emulator::launch(copy.shape, buffers, options, [&] { align_rows_kernel(copy.params); });
    if (!is_ok(report)) return false;
    buffers.back().use = emulator::BufferUse::input;
  }
  if (plan.row) {
    const Fp8RowParams& params = plan.row->params;
    if (!is_ok(
            emulator::launch(plan.row->shape, buffers, options, [&] { fp8_row_kernel(params); }))) {
      return false;
    }
  }
  for (std::size_t i = 0; i < plan.count; ++i) {
    gemm_detail::Fp8GemmLaunch& launch = plan.launches[i];
    find_tensor_maps(launch);
    // The second launch begins while the first runs, but behind what ran before that.
    for (emulator::Buffer& buffer : buffers) buffer.dependent = i == 0;
    const emulator::Report report = emulator::launch(
        launch.shape, buffers, options, [&] { run_kernel(launch.kernel, launch.params); });
    if (!is_ok(report)) return false;
  }
  return true;
}

}  // namespace blockscale::test
