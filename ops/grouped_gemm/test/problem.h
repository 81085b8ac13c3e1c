// Random grouped products for tests: groups of many kinds, operands, poisoned results.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "blockscale/grouped_gemm.h"
#include "device/emulator/emulator.h"
#include "ops/grouped_gemm/call_memory.h"
#include "ops/grouped_gemm/validate.h"
#include "tests/gemm_problem.h"

namespace blockscale::test {

/// How rows are shared out among groups.
enum class Routing : std::uint8_t { uniform, zipf, one_hot, half_empty, empty };

/// Rows of each group, `average` on average but where all are empty.
inline std::vector<std::int32_t> routed_rows(Random& random, Routing routing, std::int64_t groups,
                                             std::int64_t average) {
  std::vector<double> weights(static_cast<std::size_t>(groups), 0.0);
  for (std::int64_t g = 0; g < groups; ++g) {
    double& weight = weights[static_cast<std::size_t>(g)];
    switch (routing) {
      case Routing::uniform: weight = 1; break;
      case Routing::zipf: weight = std::pow(static_cast<double>(g + 1), -1.2); break;
      case Routing::one_hot: weight = g == groups / 2 ? 1 : 0; break;
      case Routing::half_empty: weight = g % 2 == 1 ? 1 : 0; break;
      case Routing::empty: break;
    }
  }
  std::shuffle(weights.begin(), weights.end(), random);
  std::vector<std::int32_t> rows(weights.size(), 0);
  std::partial_sum(weights.begin(), weights.end(), weights.begin());
  if (weights.back() == 0) return rows;
  for (std::int64_t i = 0; i < groups * average; ++i) {
    const double at = uniform_real(random, 0, weights.back());
    const auto g = std::upper_bound(weights.begin(), weights.end(), at) - weights.begin();
    ++rows[static_cast<std::size_t>(std::min<std::ptrdiff_t>(g, groups - 1))];
  }
  return rows;
}

struct GroupedCase {
  Recipe a = Recipe::fp8_1x128, b = Recipe::fp8_128x128;
  std::vector<std::int32_t> rows = {21, 0, 70, 5, 64};  // of each group
  std::int64_t n = 104, k = 400;
  Format dtype = Format::bf16;
  ScaleLayout layout = ScaleLayout::row_major;
  InputFamily family = InputFamily::adversarial;
  bool masked = false;
  std::int64_t gap = 0;     // rows that no group has, behind each: then with lengths
  std::int64_t behind = 7;  // behind all of them
  bool alpha = false, bias = false, gathered = false, scattered = false, adds = false;
};

/// Owns a product of a case; D is poison.
class GroupedProblem {
 public:
  GroupedProblem(Random& random, const GroupedCase& of)
      : of_(of),
        groups_(static_cast<std::int64_t>(of.rows.size())),
        rows_(rows_of(of)),
        a_(random, of.a, of.gathered ? kTokens : rows_, of.k, of.family,
           operand(of, of.masked ? groups_ : 1)),
        b_(random, of.b, of.n, of.k, of.family, operand(of, groups_)),
        d_(of.dtype, of.scattered ? rows_ + 5 : rows_, of.n, of.masked ? groups_ : 1) {
    arguments.a = a_.view();
    arguments.b = b_.view();
    arguments.d = d_.view();
    set_groups();
    if (of.alpha) {
      arguments.alpha = 0.5f;
      for (std::int64_t g = 0; g < groups_; ++g) {
        alphas_.push_back(static_cast<float>(uniform_real(random, 0.5, 2)));
      }
      arguments.alpha_factors = alphas_.data();
    }
    if (of.bias) {
      for (std::int64_t i = 0; i < groups_ * of.n; ++i) {
        bias_.push_back(static_cast<float>(normal_real(random)));
      }
      arguments.bias = bias_.data();
    }
    if (of.gathered) {
      for (std::int64_t i = 0; i < rows_; ++i) {
        index_.push_back(static_cast<std::int32_t>(uniform(random, -2, kTokens + 1)));
      }
      arguments.index = index_.data();
    }
    if (of.gathered || of.scattered) arguments.rows = rows_;
    if (of.scattered) set_destinations(random);
  }

  GroupedGemmArguments arguments;
  TestMatrix& d() { return d_; }
  std::int64_t groups() const { return groups_; }
  /// What `offsets` says, for tests that say something else.
  std::vector<std::int32_t>& offsets() { return offsets_; }

  /// All memory of the call, as a launch in the emulator may touch it.
  std::vector<emulator::Buffer> buffers() const {
    std::vector<emulator::Buffer> buffers;
    const GroupedGemmArguments x = grouped_gemm_detail::validated(arguments);
    grouped_gemm_detail::for_each_memory(
        x, [&](const char* name, gemm_detail::Access access, const void* data, const auto& lines) {
          const MemoryLines m = lines();
          if (data == nullptr || m.batch * m.lines * m.bytes == 0) return;
          const std::int64_t bytes =
              (m.batch - 1) * m.batch_stride + (m.lines - 1) * m.line_stride + m.bytes;
          const bool reads = access == gemm_detail::Access::reads;
          const emulator::BufferUse use = reads    ? emulator::BufferUse::input
                                          : x.adds ? emulator::BufferUse::both
                                                   : emulator::BufferUse::output;
          buffers.push_back(emulator::buffer(name, data, static_cast<std::size_t>(bytes), use));
        });
    return buffers;
  }

  /// Whether every row of D that no group has still is poison.
  bool are_others_untouched() {
    std::vector<std::uint8_t> bytes = d_.bytes();
    const GroupedGemmArguments x = grouped_gemm_detail::validated(arguments);
    const std::int64_t size = format_traits(x.d.dtype).bits / 8;
    for (std::int64_t g = 0; g < groups_; ++g) {
      const GroupRows rows = grouped_gemm_detail::rows_of_group(x, g);
      for (std::int64_t r = rows.begin; r < rows.end; ++r) {
        const std::int64_t to = x.destinations == nullptr ? r : std::int64_t{x.destinations[r]};
        if (to < 0 || to >= x.d.rows) continue;
        const std::int64_t matrix = of_.masked ? g : 0;
        const std::int64_t at = matrix * x.d.batch_stride + to * x.d.row_stride;
        std::memset(bytes.data() + TestMatrix::kGuard + at * size, TestMatrix::kPoison,
                    static_cast<std::size_t>(x.d.columns * size));
      }
    }
    return std::all_of(bytes.begin(), bytes.end(),
                       [](std::uint8_t b) { return b == TestMatrix::kPoison; });
  }
  void expect_others_untouched() { EXPECT_TRUE(are_others_untouched()); }

 private:
  static constexpr std::int64_t kTokens = 40;  // rows of A that are gathered from

  static OperandOptions operand(const GroupedCase& of, std::int64_t batch) {
    OperandOptions options;
    options.batch = batch;
    options.layout = of.layout;
    return options;
  }
  static std::int64_t rows_of(const GroupedCase& of) {
    if (of.masked) return *std::max_element(of.rows.begin(), of.rows.end()) + 3;
    std::int64_t rows = of.behind;
    for (const std::int32_t count : of.rows) rows += count + of.gap;
    return rows;
  }
  void set_groups() {
    lengths_ = of_.rows;
    std::int32_t first = 0;
    for (const std::int32_t count : of_.rows) {
      offsets_.push_back(first);
      first += count + static_cast<std::int32_t>(of_.gap);
    }
    offsets_.push_back(first);
    if (!of_.masked) arguments.offsets = offsets_.data();
    if (of_.masked || of_.gap > 0) arguments.lengths = lengths_.data();
  }
  /// Each row to one of its own, some nowhere.
  void set_destinations(Random& random) {
    destinations_.resize(static_cast<std::size_t>(rows_ + 5));
    std::iota(destinations_.begin(), destinations_.end(), 0);
    std::shuffle(destinations_.begin(), destinations_.end(), random);
    destinations_.resize(static_cast<std::size_t>(rows_));
    for (std::size_t i = 3; i < destinations_.size(); i += 11) destinations_[i] = -1;
    for (std::int64_t i = 0; i < rows_; ++i) {
      weights_.push_back(static_cast<float>(uniform_real(random, 0.5, 2)));
    }
    arguments.destinations = destinations_.data();
    arguments.weights = weights_.data();
    arguments.adds = of_.adds;
  }

  GroupedCase of_;
  std::int64_t groups_, rows_;
  TestOperand a_, b_;
  TestMatrix d_;
  std::vector<std::int32_t> offsets_, lengths_, index_, destinations_;
  std::vector<float> alphas_, bias_, weights_;
};

}  // namespace blockscale::test
