// The memory of a route's and of a sort's call, named once: what checks and launches go through.
#pragma once

#include <cstdint>
#include <type_traits>

#include "blockscale/moe.h"
#include "ops/common/overlap.h"
#include "ops/gemm/call_memory.h"
#include "ops/moe/validate_routing.h"

namespace blockscale::moe_detail {

/// visit(argument, access, pointer, lines) for all memory of `x`, validated, as
/// gemm_detail::for_each_memory does: what is written first, and nothing else may overlap it.
template <class Arguments, class Visit>
  requires std::is_same_v<std::remove_const_t<Arguments>, RouteArguments>
void for_each_memory(Arguments& x, const Visit& visit) {
  using enum gemm_detail::Access;
  const std::int64_t results = x.logits.rows * choices_of(x) * 4;
  visit("ids", writes, x.ids, [&, results] { return line_of(x.ids, results); });
  visit("weights", writes, x.weights, [&, results] { return line_of(x.weights, results); });
  visit("logits.data", reads, x.logits.data, [&] { return lines_of(x.logits); });
  visit("correction_bias", reads, x.correction_bias,
        [&] { return line_of(x.correction_bias, x.logits.columns * 4); });
}

template <class Arguments, class Visit>
  requires std::is_same_v<std::remove_const_t<Arguments>, MoeSortArguments>
void for_each_memory(Arguments& x, const Visit& visit) {
  const auto numbers = [&](const char* name, gemm_detail::Access access, auto& pointer,
                           std::int64_t count) {
    visit(name, access, pointer, [&pointer, count] { return line_of(pointer, count * 4); });
  };
  using enum gemm_detail::Access;
  const std::int64_t rows = rows_of(x), tiles = rows / x.tile;
  numbers("offsets", writes, x.offsets, x.experts + 1);
  numbers("row_of_entry", writes, x.row_of_entry, entries_of(x));
  numbers("entry_of_row", writes, x.entry_of_row, rows);
  numbers("token_of_row", writes, x.token_of_row, rows);
  numbers("expert_of_tile", writes, x.expert_of_tile, tiles);
  numbers("row_limit_of_tile", writes, x.row_limit_of_tile, tiles);
  numbers("padded_rows", writes, x.padded_rows, 1);
  numbers("tiles", writes, x.tiles, 1);
  numbers("ids", reads, x.ids, entries_of(x));
  numbers("expert_map", reads, x.expert_map, x.mapped_ids);
}

}  // namespace blockscale::moe_detail
