#include "table.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "text.h"

namespace blockscale::cli {
namespace {

constexpr std::size_t kGap = 2;  // spaces between columns

void append_cell(std::string& line, const std::string& cell, std::size_t width, Align align) {
  const std::string padding(width - display_width(cell), ' ');
  line += align == Align::left ? cell + padding : padding + cell;
}

void end_line(std::string& out, std::string line, Colour colour = Colour::none) {
  line.erase(line.find_last_not_of(' ') + 1);
  if (colour == Colour::red) line = "\x1b[31m" + line + "\x1b[0m";
  out += line + "\n";
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::add_row(const std::vector<std::string>& cells, Colour colour) {
  if (cells.size() != columns_.size()) throw std::logic_error("table row of the wrong length");
  Row& row = rows_.emplace_back();
  row.colour = colour;
  for (const std::string& cell : cells) row.cells.push_back(printable(cell));
}

void Table::add_rule() {
  rows_.emplace_back();
}

std::string Table::str() const {
  std::vector<std::size_t> widths;
  std::size_t total = 0;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t width = display_width(columns_[i].title);
    for (const Row& row : rows_) {
      if (!row.cells.empty()) width = std::max(width, display_width(row.cells[i]));
    }
    widths.push_back(width);
    total += width + (i == 0 ? 0 : kGap);
  }
  std::string out;
  const auto add_line = [&](const auto& cell_of, Colour colour = Colour::none) {
    std::string line;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      if (i != 0) line.append(kGap, ' ');
      append_cell(line, cell_of(i), widths[i], columns_[i].align);
    }
    end_line(out, line, colour);
  };
  add_line([&](std::size_t i) -> const std::string& { return columns_[i].title; });
  for (const Row& row : rows_) {
    if (row.cells.empty()) {
      end_line(out, std::string(total, '-'));
    } else {
      add_line([&](std::size_t i) -> const std::string& { return row.cells[i]; }, row.colour);
    }
  }
  return out;
}

}  // namespace blockscale::cli
