// Text that is safe and aligned on a terminal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace blockscale::cli {

/// `text` with control characters and bytes that are not UTF-8 written as \xNN. Names in
/// checkpoints come from strangers; printed as they are they could drive the terminal.
std::string printable(std::string_view text);

/// Terminal columns of UTF-8 text: one a code point, two for wide East Asian ones and emoji, none
/// for combining marks.
std::size_t display_width(std::string_view text);

/// `text` cut to at most `width` columns, an ellipsis in its middle.
std::string shortened(std::string_view text, std::size_t width);

/// Words joined by ", ".
std::string comma_list(const std::vector<std::string>& words);

/// Shape as "[3, 4]".
std::string shape_text(const std::vector<std::int64_t>& shape);

/// "1 tensor", "2 tensors".
std::string plural(std::int64_t count, std::string_view noun);

}  // namespace blockscale::cli
