// Untrusted text: how it is shown in messages, and which of it may name something.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace blockscale {

/// `text` in double quotes, as printable ASCII on one line: other bytes as \xNN, cut after
/// `max_bytes` bytes. Safe to print whatever a file held.
std::string quote(std::string_view text, std::size_t max_bytes = 120);

/// Whether `text`, valid UTF-8, holds a control character (C0, DEL, C1; NUL among them).
bool has_control_character(std::string_view text);

/// Whether `text` is well-formed UTF-8 (no overlong forms, no surrogates, at most U+10FFFF).
bool is_utf8(std::string_view text);

}  // namespace blockscale
