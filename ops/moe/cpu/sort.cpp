// Sorting entries by expert on the CPU: a stable counting sort. Pieces of entries are counted, and
// then placed, on all threads.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "blockscale/moe.h"
#include "blockscale/parallel.h"
#include "core/config.h"
#include "ops/common/checks.h"
#include "ops/moe/routing.h"
#include "ops/moe/validate_routing.h"

namespace blockscale {
namespace moe_detail {
namespace {

constexpr std::int64_t kPiece = 1 << 16;  // entries

/// Rows of all experts that are known: [begin, end) are an expert's entries, padding follows.
struct ExpertRows {
  std::vector<std::int64_t> begin;  // [E + 1], the last one behind all rows
  std::vector<std::int64_t> end;    // [E]
};

std::uint32_t class_of(const MoeSortArguments& x, std::int64_t entry) {
  std::int32_t id = x.ids[entry];
  if (x.expert_map != nullptr) id = id >= 0 && id < x.mapped_ids ? x.expert_map[id] : -1;
  return routing::class_of(id, static_cast<std::uint32_t>(x.first_expert),
                           static_cast<std::uint32_t>(x.experts));
}

/// counts[piece][expert], and a last one of those that are dropped.
using Counts = std::vector<std::vector<std::int64_t>>;

Counts count(const MoeSortArguments& x, int threads) {
  Counts counts(static_cast<std::size_t>(ceil_div(entries_of(x), kPiece)),
                std::vector<std::int64_t>(static_cast<std::size_t>(x.experts + 1)));
  parallel_for(entries_of(x), kPiece, threads, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t>& of_piece = counts[static_cast<std::size_t>(begin / kPiece)];
    for (std::int64_t i = begin; i < end; ++i) ++of_piece[class_of(x, i)];
  });
  return counts;
}

/// counts become the row of each piece's first entry of an expert.
ExpertRows place(const MoeSortArguments& x, Counts& counts) {
  ExpertRows rows;
  std::int64_t row = 0;
  for (std::size_t e = 0; e < static_cast<std::size_t>(x.experts); ++e) {
    rows.begin.push_back(row);
    for (std::vector<std::int64_t>& of_piece : counts) {
      const std::int64_t next = row + of_piece[e];
      of_piece[e] = row;
      row = next;
    }
    rows.end.push_back(row);
    row = ceil_div(row, x.tile) * x.tile;
  }
  rows.begin.push_back(row);
  return rows;
}

void set_row(const MoeSortArguments& x, std::int64_t row, std::int64_t entry) {
  if (x.entry_of_row != nullptr) x.entry_of_row[row] = static_cast<std::int32_t>(entry);
  if (x.token_of_row != nullptr) {
    x.token_of_row[row] = static_cast<std::int32_t>(entry < 0 ? -1 : entry / x.top_k);
  }
}

void set_entries(const MoeSortArguments& x, Counts& next_rows, int threads) {
  parallel_for(entries_of(x), kPiece, threads, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t>& next = next_rows[static_cast<std::size_t>(begin / kPiece)];
    for (std::int64_t i = begin; i < end; ++i) {
      const std::uint32_t expert = class_of(x, i);
      const std::int64_t row = expert < x.experts ? next[expert]++ : -1;
      if (row >= 0) set_row(x, row, i);
      if (x.row_of_entry != nullptr) x.row_of_entry[i] = static_cast<std::int32_t>(row);
    }
  });
}

void set_padding(const MoeSortArguments& x, const ExpertRows& rows) {
  for (std::size_t e = 0; e < rows.end.size(); ++e) {
    for (std::int64_t row = rows.end[e]; row < rows.begin[e + 1]; ++row) set_row(x, row, -1);
  }
  for (std::int64_t row = rows.begin.back(); row < rows_of(x); ++row) set_row(x, row, -1);
}

void set_tile(const MoeSortArguments& x, std::int64_t tile, std::int64_t expert,
              std::int64_t limit) {
  if (x.expert_of_tile != nullptr) x.expert_of_tile[tile] = static_cast<std::int32_t>(expert);
  if (x.row_limit_of_tile != nullptr) x.row_limit_of_tile[tile] = static_cast<std::int32_t>(limit);
}

void set_tiles(const MoeSortArguments& x, const ExpertRows& rows) {
  for (std::size_t e = 0; e < rows.end.size(); ++e) {
    for (std::int64_t row = rows.begin[e]; row < rows.begin[e + 1]; row += x.tile) {
      set_tile(x, row / x.tile, static_cast<std::int64_t>(e), std::min(row + x.tile, rows.end[e]));
    }
  }
  const std::int64_t tiles = rows.begin.back() / x.tile;
  for (std::int64_t tile = tiles; tile < rows_of(x) / x.tile; ++tile) set_tile(x, tile, -1, 0);
  if (x.tiles != nullptr) *x.tiles = static_cast<std::int32_t>(tiles);
}

void sort(const MoeSortArguments& x, int threads) {
  Counts counts = count(x, threads);
  const ExpertRows rows = place(x, counts);
  set_entries(x, counts, threads);
  set_padding(x, rows);
  if (x.tile > 1) set_tiles(x, rows);
  for (std::size_t e = 0; x.offsets != nullptr && e < rows.begin.size(); ++e) {
    x.offsets[e] = static_cast<std::int32_t>(rows.begin[e]);
  }
  if (x.padded_rows != nullptr) *x.padded_rows = static_cast<std::int32_t>(rows.begin.back());
}

}  // namespace
}  // namespace moe_detail

void moe_sort(const MoeSortArguments& arguments, int threads) {
  checks::check_threads("threads", threads);
  moe_detail::sort(moe_detail::validated(arguments), threads);
}

}  // namespace blockscale
