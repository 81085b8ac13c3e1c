// Fused inputs on a GPU: every byte equal to the CPU's, and calls that overlap.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/quantize/test/gpu_support.h"

namespace blockscale {
namespace {

using runtime::DeviceBuffer;
using test::Case;
using test::check;
using test::Data;
using test::GpuCall;
using test::Operands;
using test::random_elements;
using test::scaled_recipes;
using test::size_of;

using CudaGpuFused = test::OnGpu;

constexpr InputTransform kFused[] = {InputTransform::gelu_tanh, InputTransform::gelu_erf,
                                     InputTransform::silu,      InputTransform::swiglu,
                                     InputTransform::modulate,  InputTransform::rms_norm};

TEST_F(CudaGpuFused, FusesItsInput) {
  for (const InputTransform transform : kFused) {
    for (const Recipe recipe : scaled_recipes()) {
      for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
        Case c{recipe, dtype};
        c.rows = 70;
        c.k = 512;
        // Operands of the type of x are loaded otherwise than others.
        for (const Format operand : {dtype, dtype == Format::f32 ? Format::bf16 : Format::f32}) {
          const Operands operands(operand, 2, c.k);
          operands.use(c, transform);
          check(c, random_elements(c, Data::normal, 8));
        }
      }
    }
  }
}

TEST_F(CudaGpuFused, TakesGeluOfBlocks) {
  for (const InputTransform transform : {InputTransform::gelu_tanh, InputTransform::gelu_erf}) {
    for (const Format dtype : {Format::bf16, Format::f16}) {
      for (const Data data : test::kAllData) {
        Case c{Recipe::fp8_128x128, dtype};
        c.rows = 206;
        c.k = 512;
        test::use(c, transform);
        check(c, random_elements(c, data, 9));
      }
    }
  }
}

/// Calls of one stream overlap: the next one's kernels start before this one's have ended, and
/// fetch ahead. All of them in one workspace, which none of them finds as it left it.
TEST_F(CudaGpuFused, FollowEachOtherInOneWorkspace) {
  const Operands operands(Format::f32, 1, 1024), operands_of_x(Format::bf16, 1, 1024);
  std::vector<GpuCall> calls;
  const auto add = [&](const Case& c, std::uint32_t seed) {
    calls.emplace_back(c, random_elements(c, Data::normal, seed));
  };
  for (const Recipe recipe : {Recipe::nvfp4, Recipe::fp8_tensor, Recipe::fp8_128x128,
                              Recipe::fp8_row, Recipe::mxfp4, Recipe::nvfp4}) {
    for (const std::int64_t rows : {40, 700, 3300}) {
      Case c{recipe};
      c.rows = rows;
      c.k = 1024;
      add(c, 5);
      for (const InputTransform transform : kFused) {
        operands.use(c, transform);
        add(c, static_cast<std::uint32_t>(rows));
      }
      operands_of_x.use(c, InputTransform::rms_norm);
      add(c, 6);
    }
  }
  std::int64_t bytes = 0;
  for (const GpuCall& call : calls) bytes = std::max(bytes, call.workspace_bytes());
  DeviceBuffer workspace(size_of(bytes));
  workspace.fill(0xFF);
  runtime::wait_for_device();
  const runtime::DeviceStream stream;
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (const GpuCall& call : calls) call.run(stream.handle(), workspace);
  }
  stream.wait();
  for (GpuCall& call : calls) call.expect_bytes_of_cpu();
}

/// rms_norm with blocks of 128 rows.
Case norm_case(const Operands& weight, Format dtype, std::int64_t rows, std::int64_t k) {
  Case c{Recipe::fp8_128x128, dtype};
  c.rows = rows;
  c.k = k;
  weight.use(c, InputTransform::rms_norm);
  return c;
}

TEST_F(CudaGpuFused, NormalizesBlocksOfManyRows) {
  for (const Format dtype : {Format::bf16, Format::f32}) {
    const std::int64_t k = dtype == Format::f32 ? 4096 : 8192;
    const Operands weight(Format::f32, 1, k);
    for (const std::int64_t rows : {512, 1024, 13 * 128 + 5}) {
      const Case norm = norm_case(weight, dtype, rows, k);
      check(norm, random_elements(norm, Data::normal, 4));
    }
  }
}

}  // namespace
}  // namespace blockscale
