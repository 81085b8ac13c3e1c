#include "text.h"

#include <array>
#include <cstdint>
#include <utility>

namespace blockscale::cli {
namespace {

struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 1;
  bool valid = false;
};

/// Decodes the first code point of `text`, which is not empty. Overlong forms, surrogates and
/// values above U+10FFFF are not valid.
CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return {};
  char32_t value = lead & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3Fu);
  }
  constexpr std::array<char32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  if (value < kLeast[length] || value > 0x10FFFF || surrogate) return {};
  return {value, length, true};
}

bool within(char32_t value, std::initializer_list<std::pair<char32_t, char32_t>> ranges) {
  for (const auto& [first, last] : ranges) {
    if (value >= first && value <= last) return true;
  }
  return false;
}

/// C0, DEL and C1; line and paragraph separators; marks that change the direction of text.
bool is_control(char32_t value) {
  return within(value, {{0x00, 0x1F}, {0x7F, 0x9F}, {0x2028, 0x202E}, {0x2066, 0x2069}});
}

bool is_zero_width(char32_t value) {
  return within(value, {{0x0300, 0x036F},
                        {0x1AB0, 0x1AFF},
                        {0x1DC0, 0x1DFF},
                        {0x200B, 0x200F},
                        {0x20D0, 0x20FF},
                        {0xFE00, 0xFE0F},
                        {0xFE20, 0xFE2F}});
}

bool is_wide(char32_t value) {
  return within(value, {{0x1100, 0x115F},
                        {0x2E80, 0x303E},
                        {0x3041, 0xA4CF},
                        {0xAC00, 0xD7A3},
                        {0xF900, 0xFAFF},
                        {0xFE30, 0xFE6F},
                        {0xFF00, 0xFF60},
                        {0xFFE0, 0xFFE6},
                        {0x1F300, 0x1F6FF},
                        {0x1F900, 0x1F9FF},
                        {0x20000, 0x3FFFD}});
}

std::size_t width_of(const CodePoint& point) {
  if (!point.valid || is_zero_width(point.value)) return point.valid ? 0 : 1;
  return is_wide(point.value) ? 2 : 1;
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string result;
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    if (point.valid && !is_control(point.value)) {
      result += text.substr(0, point.bytes);
    } else {
      for (const char c : text.substr(0, point.bytes)) {
        const auto byte = static_cast<unsigned char>(c);
        result += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      }
    }
    text.remove_prefix(point.bytes);
  }
  return result;
}

std::size_t display_width(std::string_view text) {
  std::size_t width = 0;
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    width += width_of(point);
    text.remove_prefix(point.bytes);
  }
  return width;
}

std::string shortened(std::string_view text, std::size_t width) {
  if (display_width(text) <= width) return std::string(text);
  if (width == 0) return {};
  const std::size_t head_width = (width - 1) / 2;
  const std::size_t tail_width = width - 1 - head_width;
  std::string head;
  std::size_t used = 0;
  std::string_view rest = text;
  for (;;) {
    const CodePoint point = first_code_point(rest);
    if (used + width_of(point) > head_width) break;
    used += width_of(point);
    head += rest.substr(0, point.bytes);
    rest.remove_prefix(point.bytes);
  }
  while (display_width(rest) > tail_width) rest.remove_prefix(first_code_point(rest).bytes);
  return head + "…" + std::string(rest);
}

std::string comma_list(const std::vector<std::string>& words) {
  std::string result;
  for (const std::string& word : words) result += (result.empty() ? "" : ", ") + word;
  return result;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string result = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    result += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return result + "]";
}

std::string plural(std::int64_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

}  // namespace blockscale::cli
