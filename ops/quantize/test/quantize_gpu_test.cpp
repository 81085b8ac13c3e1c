// cuda::quantize on a GPU: every byte equal to the CPU's. Skipped, and says so, without one.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/quantize/test/gpu_support.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/measure.h"
#include "tests/expect_error.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using runtime::DeviceBuffer;
using test::Case;
using test::check;
using test::Data;
using test::layouts_of;
using test::random_elements;
using test::scaled_recipes;
using test::size_of;

using CudaGpu = test::OnGpu;

TEST_F(CudaGpu, WritesTheBytesOfTheCpu) {
  for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
    for (const Data data : test::kAllData) {
      Case c{Recipe::mxfp4, dtype, 37, 736, 2};
      const std::vector<std::uint8_t> elements = random_elements(c, data, 3);
      for (const Recipe recipe : scaled_recipes()) {
        for (const ScaleLayout layout : layouts_of(recipe)) {
          c.recipe = recipe;
          c.layout = layout;
          check(c, elements);
          ASSERT_FALSE(HasFailure()) << test::data_name(data);
        }
      }
    }
  }
}

/// Options of each family other than the default ones.
std::vector<Case> cases_with_options(Recipe recipe, Format dtype) {
  const Case plain{recipe, dtype, 37, 736, 3};
  std::vector<Case> cases;
  const Family family = recipe_traits(recipe).family;
  if (family == Family::mx) {
    for (const MxScaleMode mode : {MxScaleMode::floor, MxScaleMode::even}) {
      cases.push_back(plain);
      cases.back().options.mx_scale_mode = mode;
    }
  }
  if (family == Family::fp8) {
    for (const float floor : {1e-4f, 1e30f, 0x1p-149f}) {
      cases.push_back(plain);
      cases.back().options.fp8_amax_floor = floor;
    }
  }
  if (recipe_traits(recipe).tensor_scale) {
    for (const auto sense : {TensorScaleSense::divisor, TensorScaleSense::multiplier}) {
      for (const std::int64_t stride : {0, 1}) {
        for (const float given : {0.0f, 0.37f}) {
          cases.push_back(plain);
          cases.back().sense = sense;
          cases.back().tensor_scale_stride = stride;
          cases.back().given = given;
          if (given > 0) cases.back().options.scale_source = ScaleSource::given;
        }
      }
    }
  } else if (recipe_traits(recipe).block_k == 0) {
    cases.push_back(plain);
    cases.back().given = 0.37f;
    cases.back().options.scale_source = ScaleSource::given;
  }
  return cases;
}

TEST_F(CudaGpu, TakesOptionsOfEveryFamily) {
  for (const Data data : test::kAllData) {
    for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
      const std::vector<std::uint8_t> elements =
          random_elements({Recipe::mxfp4, dtype, 37, 736, 3}, data, 7);
      for (const Recipe recipe : scaled_recipes()) {
        for (Case c : cases_with_options(recipe, dtype)) {
          for (const ScaleLayout layout : layouts_of(recipe)) {
            c.layout = layout;
            check(c, elements);
            ASSERT_FALSE(HasFailure()) << test::data_name(data);
          }
        }
      }
    }
  }
}

TEST_F(CudaGpu, TakesRaggedAndOddShapes) {
  for (const auto& [rows, k] : {std::pair{1, 16384}, std::pair{129, 2880}, std::pair{300, 96},
                                std::pair{3, 33}, std::pair{7, 20001}, std::pair{1, 1}}) {
    Case c{Recipe::fp8_row, Format::bf16, rows, k};
    const std::vector<std::uint8_t> elements = random_elements(c, Data::mixed, 5);
    for (const Recipe recipe : scaled_recipes()) {
      const RecipeTraits& t = recipe_traits(recipe);
      if (!t.ragged && k % t.block_k != 0) continue;
      c.recipe = recipe;
      check(c, elements);
      ASSERT_FALSE(HasFailure());
    }
  }
}

/// Numbers of which all or, with `any`, three rows of four are normally distributed, and the others
/// any bits.
std::vector<std::uint8_t> mixed_rows(Format dtype, std::int64_t rows, std::int64_t columns,
                                     bool any) {
  std::mt19937_64 random(2027);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  std::vector<std::uint8_t> elements(size_of(rows * columns * 2));
  for (std::size_t i = 0; i < elements.size(); i += 2) {
    const bool any_bits = any && i / size_of(columns * 2) % 4 == 0;
    const std::uint32_t bits =
        any_bits ? static_cast<std::uint32_t>(random() & 0xFFFFu) : encode(dtype, normal(random));
    elements[i] = static_cast<std::uint8_t>(bits);
    elements[i + 1] = static_cast<std::uint8_t>(bits >> 8);
  }
  return elements;
}

/// What is fused, of many elements, some of which are not finite.
TEST_F(CudaGpu, FusesFunctionsWithManyElements) {
  for (const Format dtype : {Format::bf16, Format::f16}) {
    for (const bool any : {false, true}) {
      Case c{Recipe::mxfp4, dtype};
      c.rows = 1400;
      c.k = 8224;  // a block of 128 exists in part
      const std::vector<std::uint8_t> elements = mixed_rows(dtype, c.rows, 2 * c.k, any);
      for (const InputTransform transform : {InputTransform::gelu_tanh, InputTransform::gelu_erf,
                                             InputTransform::silu, InputTransform::swiglu}) {
        test::use(c, transform);
        for (const Recipe recipe :
             {Recipe::mxfp4, Recipe::mxfp6_e2m3, Recipe::mxfp8_e5m2, Recipe::nvfp4,
              Recipe::fp8_1x128, Recipe::fp8_row, Recipe::fp8_tensor, Recipe::fp8_32x128,
              Recipe::fp8_128x128_ue8m0}) {
          c.recipe = recipe;
          c.layout = layouts_of(recipe).back();
          check(c, elements);
        }
      }
    }
  }
}

TEST_F(CudaGpu, DequantizesToTheBytesOfTheCpu) {
  for (const RecipeTraits& t : kRecipes) {
    for (const ScaleLayout layout : layouts_of(t.recipe)) {
      for (const Format output : {Format::bf16, Format::f16, Format::f32}) {
        ScaledTensor x(t.recipe, 67, 1056, layout, 2);
        const MutableScaledTensorView v = x.view();
        const std::int64_t values = value_bytes(t.recipe, 67, 1056, 2);
        const std::int64_t scales = scale_bytes(t.recipe, layout, 67, 1056, 2);
        std::mt19937 random(4);
        for (std::int64_t i = 0; i < values; ++i) {
          static_cast<std::uint8_t*>(v.values)[i] = static_cast<std::uint8_t>(random());
        }
        for (std::int64_t i = 0; i < scales; ++i) {
          static_cast<std::uint8_t*>(v.scales)[i] = static_cast<std::uint8_t>(random());
        }
        std::vector<std::uint8_t> expected(
            size_of(std::int64_t{2} * 67 * 1056 * (format_traits(output).bits / 8)));
        MutableMatrixView out{expected.data(), output, 67, 1056, 0, 2};
        dequantize(v, out);
        const test::TensorOnDevice on_device(v, values, scales, 2);
        DeviceBuffer device_out(expected.size());
        out.data = device_out.data();
        device_out.fill(0xA5);
        const runtime::DeviceStream stream;
        cuda::dequantize(on_device.view(), out, {stream.handle(), nullptr, 0});
        stream.wait();
        std::vector<std::uint8_t> actual(expected.size());
        device_out.copy_to_host(actual.data(), actual.size());
        ASSERT_EQ(actual, expected) << t.name << " to " << format_traits(output).name;
      }
    }
  }
}

TEST_F(CudaGpu, FindsTheAbsoluteMaximumOfTheCpu) {
  for (const Data data : test::kAllData) {
    Case c{Recipe::nvfp4};
    c.rows = 300;
    c.k = 1000;
    c.batch = 3;
    const std::vector<std::uint8_t> elements = random_elements(c, data, 6);
    MatrixView x{elements.data(), c.dtype, c.rows, c.k, 0, c.batch};
    std::vector<float> expected(3), actual(3, -1.0f);
    absolute_maximum(x, expected.data());
    DeviceBuffer device_x(elements.size()), out(12);
    device_x.copy_from_host(elements.data(), elements.size());
    x.data = device_x.data();
    const std::int64_t bytes = cuda::absolute_maximum_workspace_bytes(x);
    DeviceBuffer workspace(size_of(bytes));
    const runtime::DeviceStream stream;
    cuda::absolute_maximum(x, {}, reinterpret_cast<float*>(out.data()),
                           {stream.handle(), workspace.data(), bytes});
    stream.wait();
    out.copy_to_host(actual.data(), 12);
    EXPECT_EQ(actual, expected) << test::data_name(data);
  }
}

TEST_F(CudaGpu, CanBeCapturedInAGraph) {
  for (const Recipe recipe : {Recipe::nvfp4, Recipe::mxfp4, Recipe::fp8_tensor}) {
    Case c{recipe};
    c.rows = 64;
    c.k = 256;
    const std::vector<std::uint8_t> first = random_elements(c, Data::normal, 1);
    const std::vector<std::uint8_t> second = random_elements(c, Data::outlier, 2);
    DeviceBuffer x(first.size());
    DeviceBuffer values(size_of(value_bytes(recipe, c.rows, c.k)));
    DeviceBuffer scales(size_of(scale_bytes(recipe, c.layout, c.rows, c.k)));
    DeviceBuffer tensor_scale(4);
    ScaledTensor expected(recipe, c.rows, c.k);
    MutableScaledTensorView out = expected.view();
    out.values = values.data();
    out.scales = scales.data();
    if (out.tensor_scale != nullptr) {
      out.tensor_scale = reinterpret_cast<float*>(tensor_scale.data());
    }
    const MatrixView gpu_x{x.data(), c.dtype, c.rows, c.k};
    const std::int64_t bytes = cuda::quantize_workspace_bytes(gpu_x, out);
    DeviceBuffer workspace(size_of(bytes));
    const runtime::DeviceStream stream;
    x.copy_from_host(first.data(), first.size());
    cuda::quantize(gpu_x, out, {}, {stream.handle(), workspace.data(), bytes});  // loads kernels
    stream.wait();
    const runtime::DeviceGraph graph(stream, [&](void* captured) {
      cuda::quantize(gpu_x, out, {}, {captured, workspace.data(), bytes});
    });
    for (const auto* elements : {&second, &first}) {
      x.copy_from_host(elements->data(), elements->size());
      values.fill(0x5A);
      graph.launch(stream);
      stream.wait();
      quantize({elements->data(), c.dtype, c.rows, c.k}, expected.view());
      std::vector<std::uint8_t> actual(values.bytes());
      values.copy_to_host(actual.data(), actual.size());
      EXPECT_EQ(std::memcmp(actual.data(), expected.view().values, actual.size()), 0)
          << recipe_traits(recipe).name;
    }
  }
}

TEST_F(CudaGpu, NamesMemoryThatIsNotOnTheDevice) {
  Case c{Recipe::nvfp4};
  DeviceBuffer x(256), values(64), scales(8), tensor_scale(4), workspace(64);
  ScaledTensor host(c.recipe, 1, 128);
  const MatrixView gpu_x{x.data(), Format::bf16, 1, 128};
  MutableScaledTensorView out = host.view();
  out.values = values.data();
  out.scales = scales.data();
  out.tensor_scale = reinterpret_cast<float*>(tensor_scale.data());
  const auto call = [&](const MatrixView& in, const MutableScaledTensorView& to, void* memory,
                        std::int64_t bytes) {
    return [=] { cuda::quantize(in, to, {}, {nullptr, memory, bytes}); };
  };
  test::expect_invalid("execution.workspace_bytes", "must be at least",
                       call(gpu_x, out, workspace.data(), 0));
  test::expect_invalid("execution.workspace", "is null", call(gpu_x, out, nullptr, 1 << 20));
  test::expect_invalid("execution.workspace", "multiple of 16 bytes",
                       call(gpu_x, out, workspace.data() + 4, 1 << 20));
  test::expect_invalid("execution.workspace", "overlaps x.data",
                       call(gpu_x, out, x.data() + 128, 128));
  MutableScaledTensorView bad = out;
  bad.scales = host.view().scales;
  test::expect_invalid("out.scales", "memory of the host",
                       call(gpu_x, bad, workspace.data(), 1 << 20));
  MatrixView host_x = gpu_x;
  const std::vector<std::uint8_t> elements(256);
  host_x.data = elements.data();
  test::expect_invalid("x.data", "memory of the host",
                       call(host_x, out, workspace.data(), 1 << 20));
}

}  // namespace
}  // namespace blockscale
