// cuda::quantize on a GPU beside the CPU, for cuda_*gpu_test.cpp.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/quantize/test_support.h"
#include "runtime/measure.h"
#include "tests/gpu.h"

namespace blockscale::test {

using runtime::DeviceBuffer;

struct Case {
  Recipe recipe;
  Format dtype = Format::bf16;
  std::int64_t rows = 1, k = 128, batch = 1;
  ScaleLayout layout = ScaleLayout::row_major;
  QuantizeOptions options = {};
  QuantizeOptions options_gpu = {};  // its operands lie on the device; else as `options`
  TensorScaleSense sense = TensorScaleSense::divisor;
};

inline std::string describe(const Case& c) {
  return std::string(recipe_traits(c.recipe).name) + " " + format_traits(c.dtype).name + " " +
         std::to_string(c.rows) + "x" + std::to_string(c.k) + " batch " + std::to_string(c.batch) +
         " " + scale_layout_traits(c.layout).name + " mode " +
         std::to_string(static_cast<int>(c.options.mx_scale_mode));
}

inline std::size_t size_of(std::int64_t bytes) {
  return static_cast<std::size_t>(bytes);
}

/// Position of the first difference, as text.
inline std::string first_difference(const std::uint8_t* a, const std::vector<std::uint8_t>& b) {
  for (std::size_t i = 0; i < b.size(); ++i) {
    if (a[i] == b[i]) continue;
    return "byte " + std::to_string(i) + " of " + std::to_string(b.size()) + ": CPU " +
           std::to_string(a[i]) + ", GPU " + std::to_string(b[i]);
  }
  return "none";
}

inline bool is_gated(const Case& c) {
  return c.options.input.transform == InputTransform::swiglu;
}

/// A call on the GPU, from packed elements, and what it should leave: the CPU's bytes.
class GpuCall {
 public:
  GpuCall(const Case& c, const std::vector<std::uint8_t>& elements)
      : case_(c),
        cpu_(c.recipe, c.rows, c.k, c.layout, c.batch, c.sense),
        out_(cpu_.view()),
        device_x_(elements.size()),
        values_(size_of(value_bytes(c.recipe, c.rows, c.k, c.batch))),
        scales_(size_of(scale_bytes(c.recipe, c.layout, c.rows, c.k, c.batch))),
        tensor_scale_(size_of(c.batch * 4)) {
    x_ = {elements.data(), c.dtype, c.rows, is_gated(c) ? 2 * c.k : c.k};
    x_.batch = c.batch;
    QuantizeOptions options = c.options;
    options.threads = 0;
    quantize(x_, cpu_.view(), options);
    device_x_.copy_from_host(elements.data(), elements.size());
    x_.data = device_x_.data();
    values_.fill(0xA5);
    scales_.fill(0xA5);
    out_.values = values_.data();
    out_.scales = scales_.data();
    if (out_.tensor_scale != nullptr) {
      out_.tensor_scale = reinterpret_cast<float*>(tensor_scale_.data());
    }
    case_.options.input = c.options_gpu.input;
    runtime::wait_for_device();
  }

  std::int64_t workspace_bytes() const {
    return cuda::quantize_workspace_bytes(x_, out_, case_.options);
  }
  void run(void* stream, const DeviceBuffer& workspace) const {
    cuda::quantize(x_, out_, case_.options,
                   {stream, workspace.data(), static_cast<std::int64_t>(workspace.bytes())});
  }
  /// Once its stream has been waited for.
  void expect_bytes_of_cpu() {
    expect_bytes(values_, cpu_.view().values, "values");
    expect_bytes(scales_, cpu_.view().scales, "scales");
    if (out_.tensor_scale == nullptr) return;
    expect_bytes(tensor_scale_, cpu_.view().tensor_scale, "tensor scale");
  }

 private:
  void expect_bytes(const DeviceBuffer& buffer, const void* expected, const char* what) const {
    std::vector<std::uint8_t> actual(buffer.bytes());
    buffer.copy_to_host(actual.data(), actual.size());
    ASSERT_EQ(std::memcmp(actual.data(), expected, actual.size()), 0)
        << describe(case_) << " " << what << ": "
        << first_difference(static_cast<const std::uint8_t*>(expected), actual);
  }

  Case case_;  // its operands lie on the device
  ScaledTensor cpu_;
  MutableScaledTensorView out_;
  MatrixView x_;
  DeviceBuffer device_x_, values_, scales_, tensor_scale_;
};

/// Runs one call on both: on the GPU in `stream`, or null: in one of its own.
inline void check(const Case& c, const std::vector<std::uint8_t>& elements,
                  void* stream = nullptr) {
  GpuCall call(c, elements);
  DeviceBuffer workspace(size_of(call.workspace_bytes()));
  workspace.fill(0xFF);
  runtime::wait_for_device();
  const runtime::DeviceStream own;
  if (stream == nullptr) stream = own.handle();
  call.run(stream, workspace);
  cuda::synchronize(stream);
  call.expect_bytes_of_cpu();
}

inline std::vector<std::uint8_t> random_elements(const Case& c, Data data, std::uint32_t seed) {
  const std::int64_t columns = is_gated(c) ? 2 * c.k : c.k;
  const Matrix x(c.dtype, c.rows, columns, c.batch, 0, data, seed);
  const auto* const bytes = static_cast<const std::uint8_t*>(x.view().data);
  const std::int64_t size = c.batch * c.rows * columns * (format_traits(c.dtype).bits / 8);
  return {bytes, bytes + size};
}

}  // namespace blockscale::test
