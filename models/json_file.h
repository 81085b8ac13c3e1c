// JSON from untrusted files: bounded in bytes and depth, no duplicate names, errors that name the
// file and the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace blockscale {

struct JsonLimits {
  std::uint64_t bytes = std::uint64_t{16} << 20;
  int depth = 32;  // nested objects and arrays
};

/// Throws corrupt_file naming `file` if `text` is too long, nested too deep, not JSON (UTF-8, no
/// comments, no NUL byte, nothing after the value) or names a member of one object twice. Of what
/// is no JSON only the numbers NaN, Infinity and -Infinity are taken, which Python's json writes.
nlohmann::json parse_json(std::string_view text, const std::string& file,
                          const JsonLimits& limits = {});

/// `value` in lines indented by two spaces, with the words that `parse_json` takes for numbers that
/// are not finite.
std::string json_text(const nlohmann::json& value);

/// Reads and parses a regular file. Also throws not_found and io.
nlohmann::json read_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});

/// `value` as JSON for messages: printable ASCII on one line, cut after `max_bytes` bytes.
std::string show_json(const nlohmann::json& value, std::size_t max_bytes = 160);

/// What `parse_json` checks before parsing; for readers that bring their own SAX handler.
void check_json_text(std::string_view text, const std::string& file, std::uint64_t max_bytes);

/// Throws corrupt_file for a syntax error that nlohmann-json reported.
[[noreturn]] void fail_json_syntax(const std::string& file, std::size_t position,
                                   const std::exception& error);

}  // namespace blockscale
