// What a call of the quantizers asks of the driver, against a fake libcuda.so.1: once its kernels
// are loaded its launches, in the caller's stream, and no more. The fake has no function that
// allocates, frees or copies: to a library that named one, its driver would be too old.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/quantize/cuda/dequantize_plan.h"
#include "ops/quantize/cuda/plan.h"
#include "ops/quantize/cuda/rows_and_columns_plan.h"
#include "ops/quantize/test/inputs.h"
#include "ops/quantize/test/support.h"
#include "tests/expect_error.h"
#include "tests/on_fake_driver.h"

namespace blockscale {
namespace {

/// What may be asked besides launches: where memory and streams belong, and what is current.
bool is_a_question(const std::string& function) {
  for (const char* const name :
       {"cuPointerGetAttribute", "cuCtxGetDevice", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"}) {
    if (function == name) return true;
  }
  return false;
}

class DriverCalls : public test::OnFakeDriver {
 protected:
  static MatrixView matrix(int part, Format dtype, std::int64_t rows, std::int64_t columns) {
    return {memory(part), dtype, rows, columns};
  }
  static MutableScaledTensorView tensor(int part, Recipe recipe, std::int64_t rows,
                                        std::int64_t k) {
    MutableScaledTensorView v;
    v.recipe = recipe;
    v.rows = rows;
    v.k = k;
    v.values = memory(part);
    v.scales = memory(part + 1);
    if (recipe_traits(recipe).tensor_scale) {
      v.tensor_scale = reinterpret_cast<float*>(memory(part + 2));
    }
    return v;
  }
  static QuantizeOptions options_with(InputTransform transform, std::int64_t k) {
    QuantizeOptions options;
    const MatrixView first = matrix(10, Format::bf16, 1, k);
    options.input = test::input_of(transform, first, matrix(11, Format::bf16, 1, k), first);
    return options;
  }

  std::map<std::string, int> calls_of(const std::function<void()>& call) {
    fake_.calls.clear();
    fake_.launches.clear();
    call();
    return fake_.calls;
  }

  /// `call` launches so many kernels into `stream_` of device 0, and asks for nothing else.
  void expect_only_launches(const std::function<void()>& call, int launches) {
    call();  // loads its kernels
    for (int repeat = 0; repeat < 2; ++repeat) {
      for (const auto& [function, count] : calls_of(call)) {
        if (function == "cuLaunchKernelEx") continue;
        EXPECT_TRUE(is_a_question(function)) << function << " is called " << count << " times";
      }
      EXPECT_EQ(fake_.launches.size(), static_cast<std::size_t>(launches));
      for (const test::FakeLaunch& launch : fake_.launches) {
        EXPECT_EQ(launch.stream, stream_) << launch.kernel;
        EXPECT_EQ(launch.device, 0) << launch.kernel;
      }
    }
  }

  int stream_memory_ = 0;
  void* stream_ = &stream_memory_;
};

TEST_F(DriverCalls, OfQuantizeAreItsLaunches) {
  for (const Recipe recipe : test::scaled_recipes()) {
    for (int t = 0; t < kInputTransformCount; ++t) {
      for (const auto& [rows, k] : {std::pair{40, 512}, std::pair{4096, 4096}}) {
        const auto transform = static_cast<InputTransform>(t);
        const QuantizeOptions options = options_with(transform, k);
        const MatrixView x =
            matrix(0, Format::bf16, rows, transform == InputTransform::swiglu ? 2 * k : k);
        const MutableScaledTensorView out = tensor(3, recipe, rows, k);
        const std::int64_t bytes = cuda::quantize_workspace_bytes(x, out, options);
        const auto plan = quantize_detail::plan_quantize(
            quantize_detail::validated(x, out, options), options, {}, memory(20));
        EXPECT_EQ(bytes, plan.workspace_bytes);
        expect_only_launches([&] { cuda::quantize(x, out, options, {stream_, memory(20), bytes}); },
                             plan.count);
        ASSERT_FALSE(HasFailure()) << plan.str();
      }
    }
  }
}

TEST_F(DriverCalls, OfRowsAndColumnsAreItsLaunches) {
  for (int t = 0; t < kInputTransformCount; ++t) {
    for (const auto& [rows, k] : {std::pair{128, 512}, std::pair{4096, 7168}}) {
      const auto transform = static_cast<InputTransform>(t);
      const QuantizeOptions options = options_with(transform, k);
      const MatrixView x =
          matrix(0, Format::bf16, rows, transform == InputTransform::swiglu ? 2 * k : k);
      const MutableScaledTensorView to_rows = tensor(3, Recipe::fp8_1x128, rows, k);
      const MutableScaledTensorView to_columns = tensor(6, Recipe::fp8_1x128, k, rows);
      const std::int64_t bytes =
          cuda::quantize_rows_and_columns_workspace_bytes(x, to_rows, to_columns, options);
      const auto plan = quantize_detail::plan_rows_and_columns(
          quantize_detail::validated(x, to_rows, to_columns, options), options, {}, memory(20));
      expect_only_launches(
          [&] {
            cuda::quantize_rows_and_columns(x, to_rows, to_columns, options,
                                            {stream_, memory(20), bytes});
          },
          plan.rstd.count + 1);
      ASSERT_FALSE(HasFailure()) << plan.str();
    }
  }
}

TEST_F(DriverCalls, OfDequantizeAreOneLaunch) {
  for (const RecipeTraits& t : kRecipes) {
    MutableScaledTensorView x = tensor(3, t.recipe, 40, 512);
    if (is_plain(t.recipe)) x.scales = nullptr;
    const MutableMatrixView out{memory(0), Format::bf16, 40, 512};
    expect_only_launches([&] { cuda::dequantize(x, out, {stream_, nullptr, 0}); }, 1);
    ASSERT_FALSE(HasFailure()) << t.name;
  }
}

TEST_F(DriverCalls, OfAbsoluteMaximumAreItsLaunches) {
  const MatrixView x = matrix(0, Format::bf16, 300, 1000);
  const std::int64_t bytes = cuda::absolute_maximum_workspace_bytes(x);
  expect_only_launches(
      [&] {
        cuda::absolute_maximum(x, {}, reinterpret_cast<float*>(memory(3)),
                               {stream_, memory(20), bytes});
      },
      2);
}

TEST_F(DriverCalls, ADeviceThatIsGivenIsNotAskedFor) {
  const MatrixView x = matrix(0, Format::bf16, 128, 512);
  const MutableMatrixView back{memory(0), Format::bf16, 128, 512};
  const MutableScaledTensorView out = tensor(3, Recipe::fp8_1x128, 128, 512);
  const MutableScaledTensorView columns = tensor(6, Recipe::fp8_1x128, 512, 128);
  auto* const amax = reinterpret_cast<float*>(memory(9));
  const std::int64_t bytes = cuda::absolute_maximum_workspace_bytes(x);
  const auto with = [&](int device) {
    cuda::Execution execution{stream_, memory(20), bytes};
    execution.device = device;
    return execution;
  };
  const std::function<void(int)> calls[] = {
      [&](int device) { cuda::quantize(x, out, {}, with(device)); },
      [&](int device) { cuda::quantize_rows_and_columns(x, out, columns, {}, with(device)); },
      [&](int device) { cuda::dequantize(out, back, with(device)); },
      [&](int device) { cuda::absolute_maximum(x, {}, amax, with(device)); }};
  for (const auto& call : calls) {
    EXPECT_THAT(calls_of([&] { call(-1); }),
                testing::Contains(testing::Key("cuPointerGetAttribute")));
    EXPECT_THAT(calls_of([&] { call(0); }),
                testing::Not(testing::Contains(testing::Key("cuPointerGetAttribute"))));
    EXPECT_GT(fake_.launches.size(), 0u);
    test::expect_invalid("execution.device", "is 2, must be -1 or one of this machine's 2",
                         [&] { call(2); });
  }
}

/// A call that waits, and one whose kernel is loaded, would be seen.
TEST_F(DriverCalls, AreCounted) {
  const cuda::DeviceScope device(0);
  EXPECT_THAT(calls_of([&] { cuda::synchronize(stream_); }),
              testing::Contains(testing::Pair("cuStreamSynchronize", 1)));
  const MatrixView x = matrix(0, Format::f32, 1, 32);  // of a type that no other test takes
  const MutableScaledTensorView out = tensor(3, Recipe::mxfp4, 1, 32);
  const auto quantize = [&] { cuda::quantize(x, out, {}, {stream_, nullptr, 0}); };
  EXPECT_THAT(calls_of(quantize), testing::Contains(testing::Pair("cuLibraryLoadData", 1)));
  EXPECT_THAT(calls_of(quantize),
              testing::Not(testing::Contains(testing::Key("cuLibraryLoadData"))));
}

}  // namespace
}  // namespace blockscale
