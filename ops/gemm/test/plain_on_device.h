// A random product on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/gemm/test/plain_problem.h"
#include "runtime/cuda/measure.h"

namespace blockscale::test {

using runtime::DeviceBuffer;

/// A problem whose operands lie on the device, in allocations of their own.
class OnDevice {
 public:
  explicit OnDevice(const PlainProblem& p) : OnDevice(p, [](PlainOperands&) {}) {}
  /// Of operands as `change` makes them.
  template <class Change>
  OnDevice(const PlainProblem& p, const Change& change) : operands_(p) {
    change(operands_);
    there_ = operands_.arguments();
    const GemmArguments& host = operands_.arguments();
    move(there_.a, host.a);
    move(there_.b, host.b);
    if (p.beta != 0) there_.c.data = move_matrix(operands_.c());
    if (p.bias) there_.bias = move_matrix(operands_.bias());
    if (p.gate) there_.gate = move_matrix(operands_.gate());
    if (p.alpha_factor) {
      there_.alpha_factor = reinterpret_cast<const float*>(move(host.alpha_factor, 4));
    }
    there_.d.data = move_matrix(operands_.d());
    d_ = memory_.size() - 1;
  }

  const GemmArguments& arguments() const { return there_; }
  const std::vector<std::uint8_t>& download() {
    auto* const host = static_cast<std::uint8_t*>(operands_.arguments().d.data);
    memory_[d_].copy_to_host(host - TestMatrix::kGuard, memory_[d_].bytes());
    EXPECT_TRUE(operands_.d().is_poison_intact());
    return operands_.d().bytes();
  }
  const GemmArguments& on_host() const { return operands_.arguments(); }
  /// Has a fresh D computed, and downloads it.
  template <class Launch>
  void multiply(const Launch& launch) {
    const runtime::DeviceStream stream;
    operands_.poison_d();
    memory_[d_].copy_from_host(operands_.d().bytes().data(), memory_[d_].bytes());
    launch({stream.handle()});
    stream.wait();
    (void)download();
  }

 private:
  const std::byte* move(const void* data, std::int64_t bytes) {
    memory_.emplace_back(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
    if (bytes > 0) memory_.back().copy_from_host(data, static_cast<std::size_t>(bytes));
    return memory_.back().data();
  }
  void move(ScaledTensorView& to, const ScaledTensorView& from) {
    const auto odd = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(from.values) % 16);
    const auto* const first = static_cast<const std::uint8_t*>(from.values) - odd;
    to.values = move(first, extent_of_values(from) + odd) + odd;
    if (is_plain(from.recipe)) return;
    to.scales = move(from.scales, extent_of_scales(from));
    if (from.tensor_scale == nullptr) return;
    const std::int64_t count = (from.batch - 1) * from.tensor_scale_batch_stride + 1;
    to.tensor_scale = reinterpret_cast<const float*>(move(from.tensor_scale, count * 4));
  }
  std::byte* move_matrix(const TestMatrix& matrix) {
    (void)move(matrix.bytes().data(), static_cast<std::int64_t>(matrix.bytes().size()));
    return memory_.back().data() + TestMatrix::kGuard;
  }

  PlainOperands operands_;
  GemmArguments there_;
  std::vector<DeviceBuffer> memory_;
  std::size_t d_ = 0;
};

/// The same bits ten times over, of what `share` computes and returns the largest error of, as a
/// part of what is allowed.
template <class Share>
void expect_same_bits(OnDevice& problem, const Share& share) {
  std::vector<std::uint8_t> first;
  for (int i = 0; i < 10; ++i) {
    EXPECT_LE(share(), 1);
    if (i == 0) first = problem.download();
    ASSERT_EQ(problem.download(), first);
  }
}

}  // namespace blockscale::test
