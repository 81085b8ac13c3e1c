// The tables of functions that CUDA kernels look values up in: every 16-bit number against the
// function itself.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/format.h"
#include "core/math.h"
#include "device/emulator/emulator.h"
#include "device/ptx/barrier.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/special_registers.h"
#include "ops/quantize/kernel_sm90_table.cuh"

namespace blockscale {
namespace {

constexpr int kThreads = 512;
constexpr std::uint32_t kPairs = 1 << 15;

/// Values of all 16-bit numbers, looked up two at a time.
template <InputTransform kTransform, Format kFormat>
std::vector<float> looked_up() {
  using Table = quantize_sm90::FunctionTable<kTransform, kFormat>;
  std::vector<float> values(2 * kPairs);
  const LaunchShape shape = {.block = {kThreads}, .dynamic_shared_bytes = kTableSharedBytes};
  const emulator::Report report =
      emulator::launch(shape, {emulator::output("values", values)}, emulator::in_order(), [&] {
        Table::template fill<kThreads>();
        ptx::barrier_sync_all();
        for (std::uint32_t i = ptx::tid_x(); i < kPairs; i += kThreads) {
          const std::uint32_t two = 2 * i | (2 * i + 1) << 16;
          const auto pair = Table::template look_up<true>(two);
          const auto other_way = Table::template look_up<false>(two);
          EXPECT_EQ(bit_cast<std::uint32_t>(pair.low), bit_cast<std::uint32_t>(other_way.low));
          EXPECT_EQ(bit_cast<std::uint32_t>(pair.high), bit_cast<std::uint32_t>(other_way.high));
          ptx::st_global(&values[2 * i], pair.low);
          ptx::st_global(&values[2 * i + 1], pair.high);
        }
      });
  EXPECT_TRUE(report.ok()) << report.text();
  return values;
}

/// Every number in [-infinity, limit) gives what `function` gives, bit for bit; the others give
/// NaN.
template <InputTransform kTransform, Format kFormat, class Function>
void expect_function(const Function& function, float highest,
                     float lowest = std::numeric_limits<float>::quiet_NaN()) {
  const std::vector<float> values = looked_up<kTransform, kFormat>();
  for (std::uint32_t bits = 0; bits < 2 * kPairs; ++bits) {
    const float x = decode<kFormat>(bits);
    const float value = values[bits];
    if (x < highest && !(x <= lowest)) {
      ASSERT_EQ(bit_cast<std::uint32_t>(value), bit_cast<std::uint32_t>(function(x))) << x;
    } else {
      ASSERT_TRUE(std::isnan(value)) << x;
    }
  }
}

TEST(FunctionTable, HoldsGeluOfEveryNumber) {
  const auto tanh = [](float x) { return math::gelu_tanh(x); };
  const auto erf = [](float x) { return math::gelu_erf(x); };
  expect_function<InputTransform::gelu_tanh, Format::bf16>(tanh, 256.0f);
  expect_function<InputTransform::gelu_tanh, Format::f16>(tanh, 96.0f);
  expect_function<InputTransform::gelu_erf, Format::bf16>(erf, 256.0f);
  expect_function<InputTransform::gelu_erf, Format::f16>(erf, 96.0f);
}

TEST(FunctionTable, HoldsSiluOfEveryNumber) {
  const auto silu = [](float x) { return math::silu(x); };
  expect_function<InputTransform::swiglu, Format::bf16>(silu, 256.0f);
  expect_function<InputTransform::swiglu, Format::f16>(silu, 28.0f, -32.0f);
}

}  // namespace
}  // namespace blockscale
