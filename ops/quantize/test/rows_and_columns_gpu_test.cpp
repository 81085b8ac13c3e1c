// cuda::quantize_rows_and_columns on a GPU: every byte equal to the CPU's. Skipped, and says so,
// without one.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/quantize/test/every_number.h"
#include "ops/quantize/test/inputs.h"
#include "ops/quantize/test/rows_and_columns_support.h"
#include "ops/quantize/test/support.h"
#include "runtime/cuda/measure.h"
#include "tests/expect_error.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using runtime::DeviceBuffer;
using test::Data;
using Output = test::GuardedOutput;

using RowsAndColumnsGpu = test::OnGpu;

/// An output on the device with the bytes, guards included, of one on the host.
class DeviceOutput {
 public:
  explicit DeviceOutput(const Output& host)
      : values_(host.values().size()), scales_(host.scales().size()), view_(host.view()) {
    restore(host);
    view_.values = values_.data() + test::kGuard;
    view_.scales = scales_.data() + test::kGuard;
  }
  const MutableScaledTensorView& view() const { return view_; }

  /// Its bytes are again those of `host`.
  void restore(const Output& host) {
    values_.copy_from_host(host.values().data(), values_.bytes());
    scales_.copy_from_host(host.scales().data(), scales_.bytes());
  }

  void expect_equal(const Output& expected, const std::string& text) const {
    EXPECT_TRUE(holds(values_, expected.values())) << text << " values";
    EXPECT_TRUE(holds(scales_, expected.scales())) << text << " scales";
  }

 private:
  static bool holds(const DeviceBuffer& buffer, const std::vector<std::uint8_t>& expected) {
    std::vector<std::uint8_t> actual(buffer.bytes());
    buffer.copy_to_host(actual.data(), actual.size());
    return actual == expected;
  }

  DeviceBuffer values_, scales_;
  MutableScaledTensorView view_;
};

struct Case {
  Recipe recipe = Recipe::fp8_1x128;
  Format dtype = Format::bf16;
  std::int64_t rows = 128, k = 128, batch = 1;
  ScaleLayout layout = ScaleLayout::row_major;
  bool strided = false;
};

/// Both outputs of a call.
template <class T>
struct Pair {
  T rows, columns;
};

Pair<Output> outputs_of(const Case& c) {
  return {Output(c.recipe, c.layout, c.rows, c.k, c.batch, c.strided),
          Output(c.recipe, c.layout, c.k, c.rows, c.batch, c.strided)};
}

std::string describe(const Case& c) {
  return std::string(recipe_traits(c.recipe).name) + " " + format_traits(c.dtype).name + " " +
         std::to_string(c.rows) + "x" + std::to_string(c.k) + " " +
         scale_layout_traits(c.layout).name + (c.strided ? " strided" : "");
}

/// Runs one call on both. `x` is on the host, and `bytes` long. `input` has the operands of the
/// host, `input_there` those on the device.
void check(const Case& c, const MatrixView& x, std::int64_t bytes, const QuantizeInput& input = {},
           const QuantizeInput& input_there = {}) {
  Pair<Output> expected = outputs_of(c);
  const Pair<DeviceOutput> actual{DeviceOutput(expected.rows), DeviceOutput(expected.columns)};
  QuantizeOptions options;
  options.input = input;
  quantize_rows_and_columns(x, expected.rows.view(), expected.columns.view(), options);
  DeviceBuffer elements(static_cast<std::size_t>(bytes));
  elements.copy_from_host(x.data, elements.bytes());
  MatrixView on_device = x;
  on_device.data = elements.data();
  options.input = input_there;
  const std::int64_t needed = cuda::quantize_rows_and_columns_workspace_bytes(
      on_device, actual.rows.view(), actual.columns.view(), options);
  const DeviceBuffer workspace(static_cast<std::size_t>(needed));
  const runtime::DeviceStream stream;
  cuda::quantize_rows_and_columns(on_device, actual.rows.view(), actual.columns.view(), options,
                                  {stream.handle(), workspace.data(), needed});
  stream.wait();
  actual.rows.expect_equal(expected.rows, describe(c) + " rows");
  actual.columns.expect_equal(expected.columns, describe(c) + " columns");
}

void check(const Case& c, Data data, std::int64_t x_padding = 0) {
  const test::Matrix x(c.dtype, c.rows, c.k, c.batch, x_padding, data, 3);
  check(c, x.view(), c.batch * c.rows * (c.k + x_padding) * (format_traits(c.dtype).bits / 8));
}

TEST_F(RowsAndColumnsGpu, WriteTheBytesOfTheCpu) {
  for (const Recipe recipe : {Recipe::fp8_1x128, Recipe::fp8_1x128_pow2, Recipe::fp8_1x128_ue8m0}) {
    for (const ScaleLayout layout : {ScaleLayout::row_major, ScaleLayout::mn_major,
                                     ScaleLayout::swizzled_128x4, ScaleLayout::swizzled_8x4}) {
      if (is_swizzled(layout) && recipe != Recipe::fp8_1x128_ue8m0) continue;
      for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
        for (const Data data : test::kAllData) {
          check({recipe, dtype, 304, 272, 2, layout}, data);
          ASSERT_FALSE(HasFailure());
        }
      }
    }
  }
}

TEST_F(RowsAndColumnsGpu, TakeRaggedAndOddShapes) {
  for (const auto& [rows, k] : {std::pair{1, 1}, std::pair{1, 5000}, std::pair{5000, 1},
                                std::pair{129, 2880}, std::pair{333, 96}, std::pair{1000, 1001}}) {
    for (const bool strided : {false, true}) {
      check({Recipe::fp8_1x128, Format::bf16, rows, k, 1, ScaleLayout::row_major, strided},
            Data::mixed, strided ? 3 : 0);
      ASSERT_FALSE(HasFailure());
    }
  }
}

/// In every position of a block of its row, and of one of its column: in one part and in several.
TEST_F(RowsAndColumnsGpu, TakeEverySixteenBitNumberInEveryPosition) {
  for (const Format dtype : {Format::bf16, Format::f16}) {
    const std::vector<std::uint16_t> x = test::every_number(dtype);
    test::expect_every_number(x);
    for (const Recipe recipe :
         {Recipe::fp8_1x128, Recipe::fp8_1x128_pow2, Recipe::fp8_1x128_ue8m0}) {
      for (const ScaleLayout layout : {ScaleLayout::row_major, ScaleLayout::mn_major}) {
        const auto rows = static_cast<std::int64_t>(x.size()) / test::kNumbers;
        check({recipe, dtype, rows, test::kNumbers, 1, layout},
              {x.data(), dtype, rows, test::kNumbers}, static_cast<std::int64_t>(x.size() * 2));
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

TEST_F(RowsAndColumnsGpu, TakeLargeMatrices) {
  check({Recipe::fp8_1x128_ue8m0, Format::bf16, 4096, 7168, 1, ScaleLayout::swizzled_128x4},
        Data::normal);
  check({Recipe::fp8_1x128, Format::f32, 2048, 2048, 2, ScaleLayout::mn_major}, Data::outlier);
}

/// Elements of x that repeat, but not from row to row: many of them are made in no time. Those of
/// another `seed` are others.
std::vector<std::uint8_t> repeated(const Case& c, Data data, std::uint32_t seed = 3) {
  constexpr std::int64_t kPeriod = 1'000'003;
  const test::Matrix some(c.dtype, 1, kPeriod, 1, 0, data, seed);
  const std::int64_t element = format_traits(c.dtype).bits / 8;
  std::vector<std::uint8_t> x(static_cast<std::size_t>(c.batch * c.rows * c.k * element));
  const auto* const from = static_cast<const std::uint8_t*>(some.view().data);
  constexpr auto kStep = static_cast<std::size_t>(kPeriod);
  for (std::size_t at = 0; at < x.size(); at += kStep * static_cast<std::size_t>(element)) {
    std::copy_n(from, std::min(kStep * static_cast<std::size_t>(element), x.size() - at), &x[at]);
  }
  return x;
}

TEST_F(RowsAndColumnsGpu, TakeFusedInputs) {
  for (const Format dtype : {Format::bf16, Format::f16, Format::f32}) {
    Case c{Recipe::fp8_1x128, dtype};
    c.rows = 600;
    c.k = 1040;
    const test::Matrix operand(dtype, 4, c.k, 1, 0, Data::normal, 5);
    const std::int64_t element = format_traits(dtype).bits / 8;
    DeviceBuffer operand_there(static_cast<std::size_t>(4 * c.k * element));
    operand_there.copy_from_host(operand.view().data, operand_there.bytes());
    for (int t = 1; t < kInputTransformCount; ++t) {
      const auto input_at = [&](const void* data) {
        const MatrixView rows{data, dtype, 4, c.k}, row{data, dtype, 1, c.k};
        return test::input_of(static_cast<InputTransform>(t), rows, rows, row);
      };
      const QuantizeInput input = input_at(operand.view().data);
      const QuantizeInput there = input_at(operand_there.data());
      const std::int64_t columns = test::is_gated(input) ? 2 * c.k : c.k;
      for (const Data data : {Data::normal, Data::any_bits}) {
        const test::Matrix x(dtype, c.rows, columns, 1, 0, data, 7);
        check(c, x.view(), c.rows * columns * element, input, there);
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

/// A call that repeats on the device, with x and outputs of its own.
class RepeatedCall {
 public:
  explicit RepeatedCall(const Case& c)
      : case_(c),
        blank_(outputs_of(c)),
        outputs_{DeviceOutput(blank_.rows), DeviceOutput(blank_.columns)},
        elements_(
            static_cast<std::size_t>(c.batch * c.rows * c.k * (format_traits(c.dtype).bits / 8))) {}

  std::int64_t workspace_bytes() const {
    return cuda::quantize_rows_and_columns_workspace_bytes(on_device(), outputs_.rows.view(),
                                                           outputs_.columns.view(), {});
  }
  void operator()(void* stream, const DeviceBuffer& workspace) const {
    cuda::quantize_rows_and_columns(
        on_device(), outputs_.rows.view(), outputs_.columns.view(), {},
        {stream, workspace.data(), static_cast<std::int64_t>(workspace.bytes())});
  }

  /// Gives it new elements, and clears its outputs.
  void restart(Data data, std::uint32_t seed) {
    x_ = repeated(case_, data, seed);
    elements_.copy_from_host(x_.data(), x_.size());
    outputs_.rows.restore(blank_.rows);
    outputs_.columns.restore(blank_.columns);
  }
  void expect_bytes_of_cpu() const {
    const Pair<Output> expected = outputs_of(case_);
    quantize_rows_and_columns({x_.data(), case_.dtype, case_.rows, case_.k, 0, case_.batch},
                              expected.rows.view(), expected.columns.view());
    outputs_.rows.expect_equal(expected.rows, describe(case_) + " rows");
    outputs_.columns.expect_equal(expected.columns, describe(case_) + " columns");
  }

 private:
  MatrixView on_device() const {
    return {elements_.data(), case_.dtype, case_.rows, case_.k, 0, case_.batch};
  }

  Case case_;
  Pair<Output> blank_;
  Pair<DeviceOutput> outputs_;
  DeviceBuffer elements_;
  std::vector<std::uint8_t> x_;
};

/// Captures these calls, which share a workspace and overlap as far as they may, and runs them with
/// two different inputs each.
void check_capture(const std::vector<Case>& cases) {
  std::vector<std::unique_ptr<RepeatedCall>> calls;
  std::int64_t needed = 0;
  for (const Case& c : cases) {
    calls.push_back(std::make_unique<RepeatedCall>(c));
    needed = std::max(needed, calls.back()->workspace_bytes());
  }
  const DeviceBuffer workspace(static_cast<std::size_t>(needed));
  const runtime::DeviceStream stream;
  const auto call_all = [&](void* captured) {
    for (const auto& call : calls) (*call)(captured, workspace);
  };
  call_all(stream.handle());  // loads the kernels
  stream.wait();
  const runtime::DeviceGraph graph(stream, call_all);
  std::uint32_t seed = 1;
  for (const Data data : {Data::outlier, Data::normal}) {
    for (const auto& call : calls) call->restart(data, seed++);
    graph.launch(stream);
    stream.wait();
    for (const auto& call : calls) call->expect_bytes_of_cpu();
  }
}

TEST_F(RowsAndColumnsGpu, CanBeCapturedInAGraph) {
  check_capture({{}, {}, {}});
}

TEST_F(RowsAndColumnsGpu, NameMemoryThatIsNotOnTheDevice) {
  const Case c;
  const test::Matrix x(c.dtype, c.rows, c.k, 1, 0, Data::normal, 1);
  const Pair<Output> host = outputs_of(c);
  const Pair<DeviceOutput> device{DeviceOutput(host.rows), DeviceOutput(host.columns)};
  test::expect_invalid("x.data", "memory of the host", [&] {
    cuda::quantize_rows_and_columns(x.view(), device.rows.view(), device.columns.view());
  });
  const DeviceBuffer memory(static_cast<std::size_t>(c.rows * c.k * 4));
  MatrixView device_x = x.view();
  device_x.data = memory.data();
  test::expect_invalid("out_columns.values", "memory of the host", [&] {
    cuda::quantize_rows_and_columns(device_x, device.rows.view(), host.columns.view());
  });
}

}  // namespace
}  // namespace blockscale
