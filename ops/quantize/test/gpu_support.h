// cuda::quantize on a GPU beside the CPU, for cuda_*gpu_test.cpp.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "blockscale/cuda.h"
#include "core/scale_layout.h"
#include "ops/quantize/test/inputs.h"
#include "ops/quantize/test/support.h"
#include "runtime/cuda/measure.h"
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
  /// Elements before x and behind each of its rows; bytes behind each row of values, and scales
  /// behind each line of them (of layouts that are not swizzled).
  std::int64_t x_shift = 0, x_padding = 0, value_padding = 0, scale_padding = 0;
  std::int64_t tensor_scale_stride = 1;
  float given = 0;  // tensor scale or scales, where options say so
};

inline std::string describe(const Case& c) {
  return std::string(recipe_traits(c.recipe).name) + " " + format_traits(c.dtype).name + " " +
         std::to_string(c.rows) + "x" + std::to_string(c.k) + " batch " + std::to_string(c.batch) +
         " padding " + std::to_string(c.x_shift) + "/" + std::to_string(c.x_padding) + "/" +
         std::to_string(c.value_padding) + "/" + std::to_string(c.scale_padding) + " " +
         scale_layout_traits(c.layout).name + " mode " +
         std::to_string(static_cast<int>(c.options.mx_scale_mode)) + " " +
         describe(c.options.input) + " floor " + std::to_string(c.options.fp8_amax_floor) +
         " given " + std::to_string(c.given) +
         (c.sense == TensorScaleSense::multiplier ? " multiplier" : "") +
         (c.tensor_scale_stride == 0 ? " shared" : "");
}

inline std::size_t size_of(std::int64_t bytes) {
  return static_cast<std::size_t>(bytes);
}

inline std::int64_t element_bytes(Format dtype) {
  return format_traits(dtype).bits / 8;
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

inline std::int64_t columns_of(const Case& c) {
  return is_gated(c.options.input) ? 2 * c.k : c.k;
}

/// An output on the host and on the device: the same garbage on both, with more of it before and
/// behind.
class OutputBytes {
 public:
  static constexpr std::int64_t kAround = 256;
  static constexpr std::uint8_t kGarbage = 0xA5;

  explicit OutputBytes(std::int64_t count)
      : host_(size_of(count + 2 * kAround), kGarbage), device_(host_.size()) {
    device_.fill(kGarbage);
  }

  std::uint8_t* host() { return host_.data() + kAround; }
  std::byte* device() const { return device_.data() + kAround; }
  std::size_t bytes() const { return host_.size() - 2 * size_of(kAround); }
  /// The device has nothing but garbage again.
  void restart() { device_.fill(kGarbage); }
  /// The device has what the host has.
  void upload() { device_.copy_from_host(host_.data(), host_.size()); }
  /// All bytes are the same on both, those around the output too.
  void expect_equal(const std::string& text) const {
    std::vector<std::uint8_t> actual(device_.bytes());
    device_.copy_to_host(actual.data(), actual.size());
    ASSERT_EQ(std::memcmp(actual.data(), host_.data(), actual.size()), 0)
        << text << " (and " << kAround
        << " around them): " << first_difference(host_.data(), actual);
  }

 private:
  std::vector<std::uint8_t> host_;
  DeviceBuffer device_;
};

/// A tensor that calls on the device read.
class TensorOnDevice {
 public:
  /// Copies one of so many bytes of values and of scales, and so many tensor scales if it has them.
  TensorOnDevice(const ScaledTensorView& host, std::int64_t value_bytes, std::int64_t scale_bytes,
                 std::int64_t tensor_scales = 1)
      : values_(copied(host.values, value_bytes)),
        scales_(copied(host.scales, scale_bytes)),
        tensor_scales_(
            copied(host.tensor_scale, host.tensor_scale == nullptr ? 0 : 4 * tensor_scales)),
        view_(host) {
    view_.values = values_.data();
    view_.scales = scales_.data();
    view_.tensor_scale = reinterpret_cast<const float*>(tensor_scales_.data());
  }
  const ScaledTensorView& view() const { return view_; }

 private:
  static DeviceBuffer copied(const void* data, std::int64_t bytes) {
    DeviceBuffer buffer(size_of(bytes));
    buffer.copy_from_host(data, buffer.bytes());
    return buffer;
  }

  DeviceBuffer values_, scales_, tensor_scales_;
  ScaledTensorView view_;
};

/// The output of a call, without memory.
inline MutableScaledTensorView shape_of(const Case& c) {
  MutableScaledTensorView v =
      output_with_gaps(c.recipe, c.rows, c.k, c.batch, c.layout, c.value_padding, c.scale_padding);
  v.sense = c.sense;
  v.tensor_scale_batch_stride = c.tensor_scale_stride;
  return v;
}

/// A call on the GPU, from packed elements, and what it should leave: the CPU's bytes.
class GpuCall {
 public:
  GpuCall(const Case& c, const std::vector<std::uint8_t>& elements)
      : case_(c),
        cpu_(shape_of(c)),
        values_(c.batch * cpu_.value_batch_stride),
        scales_(c.batch * cpu_.scale_batch_stride * element_bytes(recipe_traits(c.recipe).scale)),
        tensor_scale_(c.tensor_scale_stride == 0 ? 4 : c.batch * 4) {
    const bool has_tensor_scale = recipe_traits(c.recipe).tensor_scale;
    cpu_.values = values_.host();
    cpu_.scales = scales_.host();
    if (has_tensor_scale) cpu_.tensor_scale = reinterpret_cast<float*>(tensor_scale_.host());
    out_ = cpu_;
    out_.values = values_.device();
    out_.scales = scales_.device();
    if (has_tensor_scale) out_.tensor_scale = reinterpret_cast<float*>(tensor_scale_.device());
    if (c.options.scale_source == ScaleSource::given) give_scales();
    const std::vector<std::uint8_t> placed =
        is_packed() ? std::vector<std::uint8_t>{} : placed_elements(elements);
    quantize_both(is_packed() ? elements : placed);
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
  void expect_bytes_of_cpu() const {
    values_.expect_equal(describe(case_) + " values");
    scales_.expect_equal(describe(case_) + " scales");
    tensor_scale_.expect_equal(describe(case_) + " tensor scale");
  }
  const OutputBytes& values() const { return values_; }
  /// What the call has written is garbage again. Scales must not have been given.
  void restart() {
    values_.restart();
    scales_.restart();
    tensor_scale_.restart();
  }

 private:
  bool is_packed() const { return case_.x_shift == 0 && case_.x_padding == 0; }

  /// The elements where a strided x has them, and NaNs of any dtype between.
  std::vector<std::uint8_t> placed_elements(const std::vector<std::uint8_t>& packed) const {
    const std::int64_t size = element_bytes(case_.dtype);
    const std::int64_t from = columns_of(case_) * size;
    const std::int64_t to = from + case_.x_padding * size;
    const std::int64_t lines = case_.batch * case_.rows;
    std::vector<std::uint8_t> placed(size_of(case_.x_shift * size + lines * to), 0xFF);
    for (std::int64_t i = 0; i < lines; ++i) {
      std::memcpy(placed.data() + case_.x_shift * size + i * to, packed.data() + i * from,
                  size_of(from));
    }
    return placed;
  }

  void quantize_both(const std::vector<std::uint8_t>& memory) {
    const std::int64_t before = case_.x_shift * element_bytes(case_.dtype);
    const std::int64_t columns = columns_of(case_);
    x_ = {memory.data() + before,    case_.dtype, case_.rows, columns,
          columns + case_.x_padding, case_.batch};
    QuantizeOptions options = case_.options;
    options.threads = 0;
    quantize(x_, cpu_, options);
    device_x_ = DeviceBuffer(memory.size());
    device_x_.copy_from_host(memory.data(), memory.size());
    x_.data = device_x_.data() + before;
  }

  /// What the caller says of scales, on both.
  void give_scales() {
    const ScaleGrid grid = scale_grid(case_.recipe, case_.rows, case_.k);
    for (std::int64_t b = 0; b < case_.batch; ++b) {
      if (cpu_.tensor_scale != nullptr) {
        cpu_.tensor_scale[b * cpu_.tensor_scale_batch_stride] = case_.given;
        continue;
      }
      auto* const scales = static_cast<float*>(cpu_.scales) + b * cpu_.scale_batch_stride;
      for (std::int64_t i = 0; i < grid.rows; ++i) {
        scales[scale_offset(case_.layout, i, 0, cpu_.scale_leading_stride)] =
            case_.given * static_cast<float>(1 + i % 3);
      }
    }
    scales_.upload();
    tensor_scale_.upload();
  }

  Case case_;  // its operands lie on the device
  MutableScaledTensorView cpu_, out_;
  OutputBytes values_, scales_, tensor_scale_;
  MatrixView x_;
  DeviceBuffer device_x_;
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

/// Fuses a transform without operands into both calls of a case.
inline void use(Case& c, InputTransform transform) {
  c.options.input = c.options_gpu.input = input_of(transform);
}

/// Operands of fused inputs on the host and on the device: of `groups`, and with `padding` elements
/// behind each row.
class Operands {
 public:
  Operands(Format dtype, std::int64_t groups, std::int64_t k, std::int64_t padding = 0)
      : first_(dtype, groups, k, 1, padding, Data::normal, 71),
        second_(dtype, groups, k, 1, padding, Data::normal, 72),
        first_there_(copy_of(first_)),
        second_there_(copy_of(second_)) {}

  /// Fuses a transform into both calls of a case.
  void use(Case& c, InputTransform transform) const {
    const auto input = [&](const MatrixView& first, const MatrixView& second) {
      MatrixView row = first;
      row.rows = 1;
      row.batch_stride = 0;
      return input_of(transform, first, second, row);
    };
    c.options.input = input(first_.view(), second_.view());
    c.options_gpu.input = input(at(first_, first_there_), at(second_, second_there_));
  }

 private:
  static DeviceBuffer copy_of(const Matrix& matrix) {
    const MatrixView v = matrix.view();
    DeviceBuffer copy(size_of(v.rows * v.row_stride * element_bytes(v.dtype)));
    copy.copy_from_host(v.data, copy.bytes());
    return copy;
  }
  static MatrixView at(const Matrix& matrix, const DeviceBuffer& memory) {
    MatrixView v = matrix.view();
    v.data = memory.data();
    return v;
  }

  Matrix first_, second_;
  DeviceBuffer first_there_, second_there_;
};

inline std::vector<std::uint8_t> random_elements(const Case& c, Data data, std::uint32_t seed) {
  const std::int64_t columns = columns_of(c);
  const Matrix x(c.dtype, c.rows, columns, c.batch, 0, data, seed);
  const auto* const bytes = static_cast<const std::uint8_t*>(x.view().data);
  const std::int64_t size = c.batch * c.rows * columns * element_bytes(c.dtype);
  return {bytes, bytes + size};
}

}  // namespace blockscale::test
