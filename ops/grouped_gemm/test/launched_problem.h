// Grouped products as kernels are launched with them, for tests in the emulator and on a GPU:
// groups in one A, or masked, rows that are gathered or scattered, a D of poison.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "blockscale/grouped_gemm.h"
#include "device/emulator/emulator.h"
#include "ops/grouped_gemm/call_memory.h"
#include "ops/grouped_gemm/test/grouped_problem.h"
#include "ops/grouped_gemm/validate.h"
#include "tests/gemm_problem.h"

namespace blockscale::test {

struct GroupedCase {
  Recipe a = Recipe::fp8_1x128, b = Recipe::fp8_128x128;
  std::vector<std::int32_t> rows = {21, 0, 70, 5, 64};  // of each group
  std::int64_t n = 104, k = 400;
  Format dtype = Format::bf16;
  ScaleLayout layout = ScaleLayout::row_major;  // where an operand may have it
  InputFamily family = InputFamily::adversarial;
  bool masked = false;
  std::int64_t gap = 0;            // rows that no group has, behind each: then with lengths
  std::int64_t behind = 7;         // behind all of them
  std::int64_t extra_columns = 0;  // of D, between rows
  bool alpha = false, bias = false, gathered = false, scattered = false, adds = false;
};

inline std::string text_of(const GroupedCase& c) {
  std::string text = std::string(recipe_traits(c.a).name) + " x " + recipe_traits(c.b).name +
                     ", n " + std::to_string(c.n) + ", k " + std::to_string(c.k) + ", " +
                     scale_layout_traits(c.layout).name + (c.masked ? ", masked" : "") + ", rows";
  for (std::size_t i = 0; i < c.rows.size() && i < 12; ++i) text += " " + std::to_string(c.rows[i]);
  return text;
}

/// Numbers for five groups that are no offsets; the last list's groups share rows.
inline const std::vector<std::vector<std::int32_t>> kNoOffsets = {
    {50, 20, 20, 10, 5, 0},
    {-5, 10, 1 << 30, 7, -2'000'000'000, -3},
    {2'147'483'647, 2'147'483'647, 0, 5, 5, 5},
    {0, 40, 20, 60, 30, 90},
};

/// All memory of a call's validated arguments, as a launch in the emulator may touch it.
template <class Arguments>
std::vector<emulator::Buffer> buffers_of(const Arguments& x) {
  std::vector<emulator::Buffer> buffers;
  grouped_gemm_detail::for_each_memory(
      x, [&](const char* name, gemm_detail::Access access, const void* data, const auto& lines) {
        const std::int64_t bytes = extent_of(lines());
        if (bytes == 0) return;
        const bool reads = access == gemm_detail::Access::reads;
        const emulator::BufferUse use = reads    ? emulator::BufferUse::input
                                        : x.adds ? emulator::BufferUse::both
                                                 : emulator::BufferUse::output;
        buffers.push_back(emulator::buffer(name, data, static_cast<std::size_t>(bytes), use));
      });
  return buffers;
}

/// Owns a product of a case; D is poison. Without `alpha` alpha is 1.
class LaunchedProblem : public GroupedProblem {
 public:
  LaunchedProblem(Random& random, const GroupedCase& of)
      : GroupedProblem(random, of.a, of.b,
                       {std::ssize(of.rows), of.gathered ? kTokens : rows_of(of), of.n, of.k},
                       of.family, operand(of, of.a, of.masked ? std::ssize(of.rows) : 1),
                       operand(of, of.b, 1)),
        is_masked_(of.masked),
        rows_(rows_of(of)),
        d_(of.dtype, of.scattered ? rows_ + 5 : rows_, of.n, of.masked ? std::ssize(of.rows) : 1,
           of.extra_columns) {
    x().d = d_.view();
    set_groups(of);
    if (of.alpha) {
      use_factors();
    } else {
      x().alpha = 1;
    }
    if (of.bias) use_bias();
    if (of.gathered) {
      for (std::int64_t i = 0; i < rows_; ++i) {
        index_.push_back(static_cast<std::int32_t>(uniform(random, -2, kTokens + 1)));
      }
      x().index = index_.data();
    }
    if (of.gathered || of.scattered) x().rows = rows_;
    if (!of.scattered) return;
    set_destinations(random);
    x().adds = of.adds;
  }

  TestMatrix& d() { return d_; }
  GroupedGemmArguments validated() { return grouped_gemm_detail::validated(x()); }
  std::vector<emulator::Buffer> buffers() { return buffers_of(validated()); }

  /// Whether every row of D that no group has still is poison.
  bool are_others_untouched() {
    std::vector<std::uint8_t> bytes = d_.bytes();
    const GroupedGemmArguments x = validated();
    const std::int64_t size = format_traits(x.d.dtype).bits / 8;
    for (std::int64_t g = 0; g < x.b.batch; ++g) {
      const GroupRows rows = grouped_gemm_detail::rows_of_group(x, g);
      for (std::int64_t r = rows.begin; r < rows.end; ++r) {
        const std::int64_t to = x.destinations == nullptr ? r : std::int64_t{x.destinations[r]};
        if (to < 0 || to >= x.d.rows) continue;
        const std::int64_t at = (is_masked_ ? g : 0) * x.d.batch_stride + to * x.d.row_stride;
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

  static OperandOptions operand(const GroupedCase& of, Recipe recipe, std::int64_t batch) {
    OperandOptions options;
    options.batch = batch;
    const bool has_bytes = format_traits(recipe_traits(recipe).scale).bits == 8;
    options.layout = is_swizzled(of.layout) && !has_bytes ? ScaleLayout::row_major : of.layout;
    options.smallest_scales = false;  // products of scales are f32 numbers
    return options;
  }
  static std::int64_t rows_of(const GroupedCase& of) {
    if (of.masked) return *std::max_element(of.rows.begin(), of.rows.end()) + 3;
    return std::accumulate(of.rows.begin(), of.rows.end(),
                           of.behind + of.gap * std::ssize(of.rows));
  }
  void set_groups(const GroupedCase& of) {
    if (of.masked || of.gap > 0) set_lengths(of.rows);
    if (of.masked) return;
    std::vector<std::int32_t> with_gaps = of.rows;
    for (std::int32_t& rows : with_gaps) rows += static_cast<std::int32_t>(of.gap);
    set_offsets(offsets_of(with_gaps));
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
    x().destinations = destinations_.data();
    x().weights = weights_.data();
  }

  bool is_masked_;
  std::int64_t rows_;
  TestMatrix d_;
  std::vector<std::int32_t> index_, destinations_;
  std::vector<float> weights_;
};

/// Rows that have destinations are those of the same product without, in f32, times their weights
/// and rounded; that is added to what D was and rounded, or takes its place and leaves all else as
/// it was. `compute` leaves a problem's D.
template <class Compute>
void expect_scattered(const GroupedCase& of, const Compute& compute) {
  for (const auto& [dtype, adds] : {std::pair(Format::f32, false), std::pair(Format::f32, true),
                                    std::pair(Format::bf16, true)}) {
    if (dtype != Format::f32 && of.extra_columns % 8 != 0) continue;  // refused
    GroupedCase moved = of;
    moved.dtype = dtype;
    moved.scattered = true;
    moved.adds = adds;
    const auto rounded = [of_d = dtype](float value) {
      return encode(of_d, value, Overflow::propagate);
    };
    Random random(3), again(3);
    LaunchedProblem plain(random, of), scattered(again, moved);
    if (adds) scattered.d().fill_code(rounded(1.5f));
    compute(plain);
    compute(scattered);
    if (!adds) scattered.expect_others_untouched();
    const GroupedGemmArguments x = scattered.validated();
    const auto* const from = static_cast<const float*>(plain.x().d.data);
    const std::int64_t stride = plain.validated().d.row_stride;
    const auto* const to = static_cast<const std::uint8_t*>(x.d.data);
    const auto size = static_cast<std::size_t>(format_traits(dtype).bits / 8);
    for (std::int64_t r = 0; r < x.offsets[x.b.batch]; ++r) {
      if (x.destinations[r] < 0) continue;
      for (std::int64_t c = 0; c < of.n; ++c) {
        const std::uint32_t own = rounded(from[r * stride + c] * x.weights[r]);
        std::uint32_t got = 0;
        std::memcpy(&got,
                    to + (x.destinations[r] * x.d.row_stride + c) * static_cast<std::int64_t>(size),
                    size);
        ASSERT_EQ(got, adds ? rounded(1.5f + decode(dtype, own)) : own) << r << ", " << c;
      }
    }
  }
}

}  // namespace blockscale::test
