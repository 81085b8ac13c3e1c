// Which tensors a command shows, and in which order: --tensor, --sort and --top.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "blockscale/convert.h"
#include "text.h"

namespace blockscale::cli {

/// A column of a table that `--sort` names. Its rows come in the order that a reader looks for:
/// names and recipes from A on, sizes and errors from the largest on, SQNR from the worst on.
template <class Row>
struct Column {
  const char* name;  // as in --json
  bool (*comes_first)(const Row& a, const Row& b);
};

template <class Row>
struct Listing {
  std::vector<std::string> patterns;  // of --tensor; empty: every tensor
  bool (*comes_first)(const Row& a, const Row& b) = nullptr;
  std::optional<std::int64_t> top;

  bool is_given() const { return !patterns.empty() || comes_first != nullptr || top; }

  /// The rows to show.
  std::vector<Row> of(std::vector<Row> rows) const {
    if (comes_first != nullptr) std::ranges::stable_sort(rows, comes_first);
    if (top && static_cast<std::size_t>(*top) < rows.size()) {
      rows.resize(static_cast<std::size_t>(*top));
    }
    return rows;
  }
};

/// "5 of 120 tensors shown\n"; empty where all are.
std::string shown_text(std::size_t shown, std::size_t all);

/// Tensors that a pattern of `patterns` matches; all, if there is none. Throws as matching_weights.
std::vector<CheckpointTensor> tensors_of(const Checkpoint& checkpoint,
                                         const std::vector<std::string>& patterns);

/// Elements of a shape.
std::int64_t element_count(const std::vector<std::int64_t>& shape);

/// `columns` outlives the parser.
template <class Row, std::size_t count>
void add_listing(CLI::App& app, Listing<Row>& listing,
                 const std::array<Column<Row>, count>& columns) {
  add_repeated(app, "--tensor", "PATTERN", listing.patterns, parse_pattern,
               help_text("Only the tensors whose names match: a glob, or re: and a regular "
                         "expression. Repeatable"));
  const auto column_names = [&columns] {
    return names_of(columns, [](const Column<Row>& column) { return column.name; });
  };
  const auto parse = [&columns, column_names](const std::string& name) {
    return columns[index_of(name, "column", column_names())].comes_first;
  };
  add_parsed(app, "--sort", "COLUMN", listing.comes_first, parse,
             help_text("Sort tensors by " + comma_list(column_names()) +
                       ": what is largest or worst comes first, names and recipes from A on"));
  const auto positive = [](const std::string& text) {
    return parse_integer(text, 1, std::int64_t{1} << 40);
  };
  add_parsed(app, "--top", "K", listing.top, positive,
             "Show the first K tensors; totals count all of them");
}

}  // namespace blockscale::cli
