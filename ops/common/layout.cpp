// Scale layouts in CuTe notation.
#include "blockscale/layout.h"

#include <string>

#include "core/scale_layout.h"
#include "ops/common/checks.h"

namespace blockscale {
namespace {

/// Everything that a printed layout depends on; strides resolved.
struct Description {
  ScaleLayout layout;
  std::int64_t grid_rows;
  std::int64_t grid_columns;
  std::int64_t row_block;
  std::int64_t k_block;
  std::int64_t leading_stride;
  std::int64_t batch;
  std::int64_t batch_stride;
};

template <class Shape, class Stride>
std::string text_of(const Layout<Shape, Stride>& layout, Notation notation) {
  std::string text;
  const auto sink = [&text](char c) { text += c; };
  print(layout, notation, sink);
  return text;
}

/// Modes (row, k, batch) as (k, row, batch).
template <class Shape, class Stride>
auto with_k_first(const Layout<Shape, Stride>& x) {
  return make_layout(make_tuple(get<1>(x.shape), get<0>(x.shape), get<2>(x.shape)),
                     make_tuple(get<1>(x.stride), get<0>(x.stride), get<2>(x.stride)));
}

std::string text_of(const Description& d, Notation notation, OperandMajor major) {
  return visit_scale_layout(d.layout, [&](auto tag) {
    constexpr ScaleLayout kLayout = decltype(tag)::value;
    const auto matrix = make_scale_layout<kLayout>(d.grid_rows, d.grid_columns, d.row_block,
                                                   d.k_block, d.leading_stride);
    const auto batched = append_batch<kLayout>(matrix, d.batch, d.batch_stride);
    return major == OperandMajor::mn ? text_of(with_k_first(batched), notation)
                                     : text_of(batched, notation);
  });
}

}  // namespace

std::string describe_scale_layout(ScaleLayout layout, std::int64_t rows, std::int64_t k,
                                  std::int64_t rows_per_scale, std::int64_t group,
                                  std::int64_t leading_stride, std::int64_t batch,
                                  Notation notation, OperandMajor major) {
  checks::check_scale_layout("layout", "", layout);
  checks::check_size("rows", "", rows, 1);
  checks::check_size("k", "", k, 1);
  checks::check_size("rows_per_scale", "", rows_per_scale, 1);
  checks::check_size("group", "", group, 1);
  checks::check_size("batch", "", batch, 1);
  if (is_swizzled(layout) && rows_per_scale != 1) {
    checks::fail(
        "rows_per_scale", "",
        checks::is_but(rows_per_scale, std::string("1 for ") + scale_layout_traits(layout).name +
                                           ", which holds scales of single rows"));
  }
  Description d{
      layout, ceil_div(rows, rows_per_scale), ceil_div(k, group), rows_per_scale, group, 0, batch,
      0};
  d.leading_stride = checks::resolve_leading_stride("leading_stride", "", layout, d.grid_rows,
                                                    d.grid_columns, leading_stride);
  checks::product("rows", "", d.grid_rows, rows_per_scale);
  checks::product("k", "", d.grid_columns, group);
  d.batch_stride = checks::packed_batch_stride("rows", "", layout, d.grid_rows, d.grid_columns,
                                               d.leading_stride);
  checks::product("batch", "", batch, d.batch_stride);
  return text_of(d, notation, major);
}

std::string describe_scale_layout(const ScaledTensorView& tensor, Notation notation) {
  const ScaledTensorView t = resolved(tensor, "tensor");
  const RecipeTraits& traits = recipe_traits(t.recipe);
  if (traits.family == Family::plain) {
    checks::fail("tensor", "recipe", std::string("is ") + traits.name + ", which has no scales");
  }
  checks::check_size("tensor", "rows", t.rows, 1);
  checks::check_size("tensor", "k", t.k, 1);
  const ScaleGrid grid = scale_grid(t.recipe, t.rows, t.k);
  return text_of(
      {t.layout, grid.rows, grid.columns, traits.block_rows == 0 ? t.rows : traits.block_rows,
       traits.block_k == 0 ? t.k : traits.block_k, t.scale_leading_stride, t.batch,
       t.scale_batch_stride},
      notation, OperandMajor::k);
}

}  // namespace blockscale
