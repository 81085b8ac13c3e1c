// What a launch of a random product may touch, for the emulator.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "device/emulator/emulator.h"
#include "ops/gemm/test/emulation.h"
#include "ops/gemm/test/plain_problem.h"

namespace blockscale::test {

inline std::vector<emulator::Buffer> buffers_of(PlainOperands& operands) {
  const GemmArguments& x = operands.arguments();
  const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  const auto of_d = x.c.data == x.d.data ? emulator::BufferUse::both : emulator::BufferUse::output;
  std::vector<emulator::Buffer> buffers = {
      emulator::buffer("a", operands.a_values().at(), operands.a_values().bytes(),
                       emulator::BufferUse::input),
      emulator::buffer("b", operands.b_values().at(), operands.b_values().bytes(),
                       emulator::BufferUse::input),
      emulator::buffer("a scales", x.a.scales, bytes(extent_of_scales(x.a)),
                       emulator::BufferUse::input),
      emulator::buffer("b scales", x.b.scales, bytes(extent_of_scales(x.b)),
                       emulator::BufferUse::input),
      emulator::buffer("d", operands.d().bytes().data(), operands.d().bytes().size(), of_d),
      emulator::input("c", operands.c().bytes()),
      emulator::input("bias", operands.bias().bytes()),
      emulator::input("gate", operands.gate().bytes()),
      emulator::buffer("factor", &operands.factor(), sizeof(float), emulator::BufferUse::input)};
  for (const auto& [name, view] : {std::pair{"a tensor scale", x.a}, {"b tensor scale", x.b}}) {
    if (view.tensor_scale == nullptr) continue;
    const std::int64_t count = (view.batch - 1) * view.tensor_scale_batch_stride + 1;
    buffers.push_back(
        emulator::buffer(name, view.tensor_scale, bytes(count * 4), emulator::BufferUse::input));
  }
  std::erase_if(buffers, [](const emulator::Buffer& b) { return b.bytes == 0; });
  return buffers;
}

/// Launches a plan of FP4 weights with these parameters, `more` memory beside the operands'. False
/// if the emulator has something to report.
template <class Plan, class Params>
bool launch_emulated(const Plan& plan, const Params& params, PlainOperands& operands,
                     const emulator::Options& options,
                     const std::vector<emulator::Buffer>& more = {}) {
  const auto kernel = static_cast<std::size_t>(plan.kernel);
  std::vector<emulator::Buffer> buffers = buffers_of(operands);
  buffers.insert(buffers.end(), more.begin(), more.end());
  const emulator::Report report =
      emulator::launch(plan.shape, buffers, emulator::compiled_for(plan.architecture, options),
                       [&] { run_kernel(kernel, params); });
  EXPECT_TRUE(report.ok()) << plan.str() << report.text();
  EXPECT_TRUE(operands.d().is_poison_intact());
  return report.ok();
}

/// The usual error of a path, though the emulator sums products exactly.
inline gemm_detail::ErrorLimit limit_of(const PlainProblem& p, gemm_detail::GemmPath path) {
  return p.exact ? gemm_detail::ErrorLimit{} : gemm_detail::usual_error(path, p.k);
}

/// Runs a problem by run(operands), and compares.
template <class Run>
void check_emulated(const PlainProblem& p, gemm_detail::GemmPath path, const Run& run) {
  SCOPED_TRACE(p.str());
  PlainOperands operands(p);
  if (!run(operands)) return;
  EXPECT_LE(compare(operands.arguments_before(), limit_of(p, path)).largest_share, 1);
}

/// A launch that is wrong in one place.
template <class Params>
struct Mutant {
  const char* name;
  std::function<void(Params&)> change;
};

/// In what FP4's kernels take of B's scales.
template <class Params>
std::vector<Mutant<Params>> scale_mutants() {
  return {{"blocks have the scales of others", [](Params& p) { p.scales.k_stride_4 = 0; }},
          {"a row has another one's scales", [](Params& p) { p.scales.row_stride = 0; }},
          {"a tensor scale is inverted", [](Params& p) {
             if (p.tensor_scale.data == nullptr) {
               p.epilogue.alpha = 1.01f;
               p.epilogue.keeps_sums = false;
             }
             p.tensor_scale.divides = !p.tensor_scale.divides;
           }}};
}

/// Runs a problem of normal data by run(operands, change of its launch): most of D is beyond what
/// is usual.
template <class Params, class Run>
void expect_rejected(const Mutant<Params>& mutant, PlainProblem p, gemm_detail::GemmPath path,
                     const Run& run) {
  p.family = InputFamily::normal;
  SCOPED_TRACE(mutant.name + (" " + p.str()));
  PlainOperands operands(p);
  ASSERT_TRUE(run(operands, mutant.change));
  EXPECT_GT(compare(operands.arguments(), limit_of(p, path)).violations, p.m * p.n / 2);
}

/// The same bits in the rows that `some` has, the first ones of `all`, whose D is in f32.
inline void expect_same_rows(PlainOperands& some, PlainOperands& all) {
  const MutableMatrixView& d = some.arguments().d;
  const std::int64_t end = TestMatrix::kGuard + d.rows * d.row_stride * 4;
  EXPECT_TRUE(std::equal(some.d().bytes().begin(), some.d().bytes().begin() + end,
                         all.d().bytes().begin()));
}

/// A byte of B whose elements are this number.
inline std::uint8_t byte_of(Recipe b, float number) {
  const Format format = recipe_traits(b).element;
  const std::uint32_t code = encode(format, number);
  return static_cast<std::uint8_t>(format == Format::e2m1 ? code * 0x11 : code);
}

/// Gives A's scales of a row, all of them in f32, this number.
inline void set_a_scales(PlainOperands& operands, std::int64_t row, float number) {
  const ScaledTensorView& a = operands.arguments().a;
  for (std::int64_t j = 0; j < scale_grid(a.recipe, a.rows, a.k).columns; ++j) {
    operands.a().set_scale(row, j, std::bit_cast<std::uint32_t>(number));
  }
}

/// run(operands) of every scale that there is, each for a row of B of its own, and of sums that are
/// exact.
template <class Run>
void check_every_scale(Recipe a, Recipe b, const Run& run, int exponent_of_a = 0) {
  PlainProblem p = problem_of(a, b, 3, 256, 64);
  p.exact = true;
  PlainOperands operands(p);
  // Small numbers, so that sums are numbers with the largest scales too.
  const int exponent = is_plain(a) ? -12 : exponent_of_a;
  for (std::int64_t i = 0; i < p.m * p.k; ++i) {
    set_a(operands, i / p.k, i % p.k, std::ldexp(static_cast<float>(i % 9 - 4), exponent));
  }
  for (std::int64_t row = 0; row < p.m; ++row) set_a_scales(operands, row, 0x1p-12f);
  for (std::int64_t row = 0; row < p.n; ++row) {
    const std::int64_t blocks = p.k / recipe_traits(b).block_k;
    for (std::int64_t block = 0; block < blocks; ++block) {
      operands.b().set_scale(row, block, static_cast<std::uint32_t>(row));
    }
  }
  const bool is_mx = recipe_traits(b).family == Family::mx;
  if (is_mx) {  // elements are f32 numbers: half of 2^125, 2^126 and 2^127
    const std::int64_t row = operands.arguments().b.value_row_stride;
    for (std::int64_t i = 252 * row; i < 255 * row; ++i) {
      operands.b_values().at()[i] = i % 3 == 0 ? byte_of(b, 0.5f) : std::uint8_t{0};
    }
  }
  ASSERT_TRUE(run(operands));
  const GemmArguments& x = operands.arguments();
  EXPECT_EQ(compare(x, {}).violations, 0);
  const auto* const d = static_cast<const float*>(x.d.data);
  for (std::int64_t row = 0; row < p.n; ++row) {
    const bool is_nan = is_mx ? row == 255 : row % 128 == 127;
    EXPECT_EQ(std::isnan(d[row]), is_nan) << row;
  }
}

}  // namespace blockscale::test
