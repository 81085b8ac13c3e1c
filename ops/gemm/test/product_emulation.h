// Runs plans of products of any pair in the emulator, and what is behind them, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "device/emulator/emulator.h"
#include "ops/gemm/cuda/product_plan.h"
#include "ops/gemm/kernels/transform.cuh"
#include "ops/gemm/test/emulation.h"
#include "ops/quantize/test/emulation.h"

namespace blockscale::test {

/// What the plan of validated arguments asks for; each number in it is NaN.
inline std::vector<std::uint32_t> poisoned_workspace(const GemmArguments& validated,
                                                     const cuda::Chip& chip) {
  const std::int64_t bytes = gemm_detail::plan_product(validated, chip).workspace_bytes;
  return std::vector<std::uint32_t>(static_cast<std::size_t>(bytes / 4), 0xFFFFFFFFu);
}

/// Runs a product's launches in their order. True if the emulator has nothing to report.
inline bool emulate(gemm_detail::ProductPlan& plan, const std::vector<emulator::Buffer>& buffers,
                    const emulator::Options& options) {
  const auto run = [&](int architecture, const LaunchShape& shape, const auto& kernel) {
    const emulator::Report report =
        emulator::launch(shape, buffers, emulator::compiled_for(architecture, options), kernel);
    EXPECT_TRUE(report.ok()) << plan.str() << report.text();
    return report.ok();
  };
  const auto run_transform = [&](const gemm_detail::TransformPlan& of) {
    return run(of.architecture, of.shape, [&] { transform_kernel(of.params); });
  };
  if (auto* const fp8 = std::get_if<gemm_detail::Fp8GemmPlan>(&plan.product)) {
    if (!emulate(*fp8, buffers, options)) return false;
  } else if (const auto* const fp4 = std::get_if<gemm_detail::Fp4GemmPlan>(&plan.product)) {
    const auto kernel = static_cast<std::size_t>(fp4->kernel);
    if (!run(fp4->architecture, fp4->shape, [&] { run_kernel(kernel, fp4->params); })) return false;
  } else if (auto* const tiles = std::get_if<gemm_detail::Fp4TilesPlan>(&plan.product)) {
    if (!emulate(*tiles, buffers, options)) return false;
  } else if (auto* const scaled = std::get_if<gemm_detail::BlockScaledPlan>(&plan.product)) {
    const auto kernel = static_cast<std::size_t>(scaled->kernel);
    gemm_detail::resolve_tensor_maps(scaled->maps, emulator::encode_tensor_map, scaled->params);
    if (!run(scaled->architecture, scaled->shape, [&] { run_kernel(kernel, scaled->params); })) {
      return false;
    }
  } else {
    auto& plain = std::get<gemm_detail::PlainGemmPlan>(plan.product);
    const auto kernel = static_cast<std::size_t>(plain.product->kernel);
    if (!run(plain.architecture, plain.product->shape,
             [&] { run_kernel(kernel, plain.product->params); })) {
      return false;
    }
  }
  return (!plan.transform || run_transform(*plan.transform)) &&
         (!plan.quantization || emulate(*plan.quantization, buffers, options));
}

}  // namespace blockscale::test
