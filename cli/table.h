// Plain tables: columns aligned by spaces, so that they read well and can be cut with awk.
#pragma once

#include <string>
#include <vector>

namespace blockscale::cli {

enum class Align { left, right };
enum class Colour { none, red };

class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::left;
  };

  explicit Table(std::vector<Column> columns);

  /// One cell a column. Cells are made `printable`.
  void add_row(const std::vector<std::string>& cells, Colour colour = Colour::none);
  /// A line of dashes before the next row, as before totals.
  void add_rule();

  /// The table, each line ended by '\n' and without spaces at its end.
  std::string str() const;

 private:
  struct Row {
    std::vector<std::string> cells;  // none: a rule
    Colour colour = Colour::none;
  };

  std::vector<Column> columns_;
  std::vector<Row> rows_;
};

}  // namespace blockscale::cli
