// The FP8 mainloop by another order of tiles: groups that are runs of rows of one A and one D, each
// with its own B. Every row must have the bytes that a dense product of its group gives, and
// nothing else of D be written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/gemm/cuda/plan.h"
#include "ops/gemm/cuda/tuning.h"
#include "ops/gemm/kernels/sm90/fp8_entry.cuh"
#include "ops/gemm/test/emulation.h"
#include "ops/gemm/validate.h"
#include "tests/chip.h"
#include "tests/gemm_problem.h"

namespace blockscale {
namespace {

using emulator::BufferUse;
using gemm_detail::Fp8LaunchConfig;

/// Groups in turn, each tile column by tile column.
struct SpanOrder {
  static constexpr bool kGroupsAreMatrices = false;
  static constexpr bool kIsKnownAtLaunch = true;
  static constexpr bool kGathersRows = false;
  using RowMap = SameRows;
  static constexpr uint32_t kMostGroups = 5;

  uint32_t tiles = 0;
  uint32_t tiles_n = 0;
  uint32_t groups = 0;
  uint32_t begins[kMostGroups + 1] = {};

  BLOCKSCALE_HD static constexpr RowMap row_map() { return {}; }
  BLOCKSCALE_HD static constexpr uint32_t matrix_of(const Tile&) { return 0; }
  template <uint32_t kRows>
  BLOCKSCALE_HD constexpr Tile tile(uint32_t index) const {
    uint32_t group = 0;
    for (;; ++group) {
      const uint32_t count = tile_rows(group, kRows) * tiles_n;
      if (index < count || group + 1 == groups) break;
      index -= count;
    }
    const uint32_t rows = tile_rows(group, kRows);
    const uint32_t row = rows == 0 ? 0 : index % rows;
    return {group, rows == 0 ? 0 : index / rows, begins[group] + row * kRows, begins[group + 1]};
  }
  BLOCKSCALE_HD constexpr uint32_t tile_rows(uint32_t group, uint32_t rows) const {
    return (begins[group + 1] - begins[group] + rows - 1) / rows;
  }
};

/// The dense launch of the product with the rows of all groups, as one of `order`.
Fp8GemmParamsOf<SpanOrder> with_order(const Fp8GemmParams& dense, const SpanOrder& order) {
  Fp8GemmParamsOf<SpanOrder> p;
  static_cast<Fp8GemmParts&>(p) = dense;
  p.maps[static_cast<std::size_t>(Fp8GemmMap::a_tail)] = *dense.map(Fp8GemmMap::a);
  p.order = order;
  p.a_tail_bytes = dense.a_bytes;  // behind a group's rows are another's, not stored
  p.b_batched = true;
  return p;
}

class GroupedProduct {
 public:
  static constexpr std::int64_t kColumns = 104, kDepth = 400;

  GroupedProduct(const std::vector<std::int64_t>& rows, Format dtype)
      : rows_(rows),
        all_(sum_of(rows)),
        random_(11),
        a_(random_, Recipe::fp8_1x128, all_, kDepth, test::InputFamily::normal),
        b_(random_, Recipe::fp8_128x128, kColumns, kDepth, test::InputFamily::normal, groups()),
        a_values_(test::copy_of_values(a_.view())),
        b_values_(test::copy_of_values(b_.view())),
        d_(dtype, all_ + kBehind, kColumns, 1),
        expected_(dtype, all_ + kBehind, kColumns, 1) {}

  /// By one launch of `config` under one schedule.
  void check(const Fp8LaunchConfig& config, const emulator::Options& options) {
    SCOPED_TRACE(gemm_detail::text_of(config));
    const gemm_detail::Fp8GemmPlan plan = plan_of(0, all_, 0, d_.view(), config);
    gemm_detail::GemmStep step = plan.steps.at(0);
    step.maps[static_cast<std::size_t>(Fp8GemmMap::b)].sizes[2] = rows_.size();
    step.maps[static_cast<std::size_t>(Fp8GemmMap::b_second)].sizes[2] = rows_.size();
    Fp8GemmParams dense = std::get<Fp8GemmParams>(step.params);
    gemm_detail::resolve_tensor_maps(step.maps, emulator::encode_tensor_map, dense);
    SpanOrder order;
    order.groups = static_cast<std::uint32_t>(rows_.size());
    order.tiles_n = static_cast<std::uint32_t>(ceil_div(kColumns, config.columns));
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      order.begins[i + 1] = order.begins[i] + static_cast<std::uint32_t>(rows_[i]);
      order.tiles += static_cast<std::uint32_t>(ceil_div(rows_[i], config.rows)) * order.tiles_n;
    }
    Fp8GemmParamsOf<SpanOrder> params = with_order(dense, order);
    params.b_scales.batch_stride = b_.view().scale_batch_stride;
    step.shape.grid = {std::min(order.tiles, 3u)};
    const auto run = config.rows == 64 ? &fp8_gemm_kernel<detail::by_blocks(64, 64), SpanOrder>
                                       : &fp8_gemm_kernel<detail::by_blocks(128, 128), SpanOrder>;
    const emulator::Report report =
        emulator::launch(step.shape, buffers(d_), options, [&] { run(params); });
    ASSERT_TRUE(report.ok()) << report.text();
    std::int64_t first = 0;
    for (std::size_t i = 0; i < rows_.size(); first += rows_[i++]) {
      if (rows_[i] == 0) continue;
      MutableMatrixView d = expected_.view();
      d.data = static_cast<std::byte*>(d.data) +
               first * d.row_stride * (format_traits(d.dtype).bits / 8);
      gemm_detail::Fp8GemmPlan one =
          plan_of(first, rows_[i], static_cast<std::int64_t>(i), d, config);
      ASSERT_TRUE(test::emulate(one, buffers(expected_), emulator::in_order()));
    }
    EXPECT_EQ(d_.bytes(), expected_.bytes());
  }

 private:
  static constexpr std::int64_t kBehind = 20;  // rows of D that no group has

  static std::int64_t sum_of(const std::vector<std::int64_t>& rows) {
    std::int64_t sum = 0;
    for (const std::int64_t count : rows) sum += count;
    return sum;
  }
  test::OperandOptions groups() const {
    test::OperandOptions options;
    options.batch = static_cast<std::int64_t>(rows_.size());
    return options;
  }
  std::vector<emulator::Buffer> buffers(test::TestMatrix& d) {
    const auto add = [](const char* name, const void* data, std::int64_t bytes, BufferUse use) {
      return emulator::buffer(name, data, static_cast<std::size_t>(bytes), use);
    };
    return {add("a", a_values_.at(), a_values_.bytes(), BufferUse::input),
            add("b", b_values_.at(), b_values_.bytes(), BufferUse::input),
            add("a scales", a_.view().scales, test::scale_bytes_of(a_.view()), BufferUse::input),
            add("b scales", b_.view().scales, test::scale_bytes_of(b_.view()), BufferUse::input),
            emulator::output("d", d.bytes())};
  }
  /// Of rows of A with one group's B.
  gemm_detail::Fp8GemmPlan plan_of(std::int64_t first, std::int64_t rows, std::int64_t group,
                                   MutableMatrixView d, const Fp8LaunchConfig& config) {
    GemmArguments x;
    x.a = a_.view();
    x.a.values = a_values_.at() + first * x.a.value_row_stride;
    x.a.scales = static_cast<const float*>(x.a.scales) + first * x.a.scale_leading_stride;
    x.a.rows = rows;
    x.b = b_.view();
    x.b.values = b_values_.at() + group * x.b.value_batch_stride;
    x.b.scales = static_cast<const float*>(x.b.scales) + group * x.b.scale_batch_stride;
    x.b.batch = 1;
    x.d = d;
    x.d.rows = rows;
    return gemm_detail::plan_fp8_gemm(gemm_detail::validated(x, {}), test::chip_of(4), config);
  }

  std::vector<std::int64_t> rows_;
  std::int64_t all_;
  test::Random random_;
  test::TestOperand a_, b_;
  test::AlignedCopy a_values_, b_values_;
  test::TestMatrix d_, expected_;
};

TEST(EmulatedRowSpans, GroupsOfRowsHaveTheBytesOfDenseProducts) {
  for (const Format dtype : {Format::bf16, Format::f32}) {
    GroupedProduct product({21, 0, 70, 5, 64}, dtype);
    product.check(Fp8LaunchConfig{64, 64, 3, 1, 1}, emulator::in_order());
    product.check(Fp8LaunchConfig{64, 64, 3, 1, 1}, emulator::random_order(2));
  }
  GroupedProduct wide({130, 3, 16}, Format::bf16);
  wide.check(Fp8LaunchConfig{128, 128, 3, 1, 1}, emulator::random_order(3));
}

}  // namespace
}  // namespace blockscale
