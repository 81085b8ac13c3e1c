// The tables of docs/numerics.md are those of the code: where one differs, the failure shows the
// table to put there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "blockscale/layout.h"
#include "core/recipe.h"
#include "core/scale_layout.h"

namespace blockscale {
namespace {

using testing::HasSubstr;

using Row = std::vector<std::string>;

std::string markdown(const std::vector<Row>& rows) {
  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (const std::string& cell : rows[i]) text += cell.empty() ? "| " : "| " + cell + " ";
    text += "|\n";
    for (std::size_t column = 0; i == 0 && column < rows[0].size(); ++column) text += "|---";
    if (i == 0) text += "|\n";
  }
  return text;
}

std::string code(const std::string& text) {
  return "`" + text + "`";
}

std::string hex(std::uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%02X", value);
  return text;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string numerics() {
  std::ifstream file(BLOCKSCALE_SOURCE_DIR "/docs/numerics.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(DocsTables, Formats) {
  std::vector<Row> rows = {
      {"format", "bits", "exponent + mantissa bits", "bias", "emax", "largest", "NaN", "infinity"}};
  for (const FormatTraits& t : kFormatTraits) {
    rows.push_back({code(t.name), std::to_string(t.bits),
                    std::to_string(t.exponent_bits) + " + " + std::to_string(t.mantissa_bits),
                    std::to_string(t.bias), std::to_string(t.max_exponent),
                    number(static_cast<double>(t.max)), t.nan_code == 0 ? "none" : hex(t.nan_code),
                    t.has_infinity ? "yes" : "none"});
  }
  EXPECT_THAT(numerics(), HasSubstr(markdown(rows)));
}

std::string scale_text(const RecipeTraits& t) {
  const char* name = format_traits(t.scale).name;
  return t.scale == Format::f32 && t.power_of_two ? std::string(name) + ", powers of two" : name;
}

std::string block_text(const RecipeTraits& t) {
  if (t.block_rows == 0) return "whole tensor";
  const std::string rows = std::to_string(t.block_rows);
  return rows + " x " + (t.block_k == 0 ? "K" : std::to_string(t.block_k));
}

/// Bits of a value and its share of a scale, in a large matrix.
double bits_per_value(const RecipeTraits& t) {
  const double element = format_traits(t.element).bits;
  if (t.block_rows == 0 || t.block_k == 0) return element;
  return element + static_cast<double>(format_traits(t.scale).bits) / (t.block_rows * t.block_k);
}

TEST(DocsTables, Recipes) {
  std::vector<Row> rows = {{"recipe", "elements", "scales", "one scale per (rows x k)",
                            "tensor scale", "k", "bits a value"}};
  for (const RecipeTraits& t : kRecipes) {
    if (t.family == Family::plain) continue;
    rows.push_back({code(t.name), format_traits(t.element).name, scale_text(t), block_text(t),
                    t.tensor_scale ? "f32" : "",
                    t.ragged ? "any" : "multiple of " + std::to_string(t.block_k),
                    number(bits_per_value(t))});
  }
  EXPECT_THAT(numerics(), HasSubstr(markdown(rows)));
}

TEST(DocsTables, ScaleLayouts) {
  std::vector<Row> rows = {
      {"layout", "tile (scale rows x k blocks)", "scales of a 256 x 128 matrix"}};
  for (const ScaleLayoutTraits& t : kScaleLayouts) {
    const bool swizzled = is_swizzled(t.layout);
    rows.push_back({code(t.name),
                    swizzled ? std::to_string(t.tile_rows) + " x " + std::to_string(t.tile_k) : "",
                    code(describe_scale_layout(t.layout, 256, 128, 1, 16))});
  }
  EXPECT_THAT(numerics(), HasSubstr(markdown(rows)));
}

}  // namespace
}  // namespace blockscale
