#include "table.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace blockscale::cli {
namespace {

TEST(Table, AlignsColumnsAndEndsLinesCleanly) {
  Table table({{"Tensor"}, {"Bytes", Align::right}, {"Recipe"}});
  table.add_row({"a", "12", "nvfp4"});
  table.add_row({"longer.name", "3", ""});
  table.add_rule();
  table.add_row({"total", "15", ""});
  EXPECT_EQ(table.str(),
            "Tensor       Bytes  Recipe\n"
            "a               12  nvfp4\n"
            "longer.name      3\n"
            "--------------------------\n"
            "total           15\n");
}

TEST(Table, CountsColumnsNotBytes) {
  Table table({{"Name"}, {"N", Align::right}});
  table.add_row({"größe", "1"});
  table.add_row({"重み", "2"});
  EXPECT_EQ(table.str(),
            "Name   N\n"
            "größe  1\n"
            "重み   2\n");
}

TEST(Table, EscapesControlCharacters) {
  Table table({{"Name"}});
  table.add_row({"a\nb\x1b[2J"});
  EXPECT_EQ(table.str(), "Name\na\\x0Ab\\x1B[2J\n");
}

TEST(Table, ColoursWholeRowsWithoutMovingColumns) {
  Table table({{"Name"}, {"N", Align::right}});
  table.add_row({"a", "10"}, Colour::red);
  table.add_row({"b", "2"});
  EXPECT_EQ(table.str(),
            "Name   N\n"
            "\x1b[31ma     10\x1b[0m\n"
            "b      2\n");
}

TEST(Table, WithoutRowsIsItsTitle) {
  EXPECT_EQ(Table({{"A"}, {"B"}}).str(), "A  B\n");
}

TEST(Table, RefusesRowsOfTheWrongLength) {
  Table table({{"A"}, {"B"}});
  EXPECT_THROW(table.add_row({"one"}), std::logic_error);
}

}  // namespace
}  // namespace blockscale::cli
