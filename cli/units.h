// Numbers as people write them on a command line, and back.
//
// Parsing is strict: the whole text must be the number, in range; else ParseError says what is
// allowed, and the caller knows which option it was.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace blockscale::cli {

struct ParseError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A decimal integer in [min, max].
std::int64_t parse_integer(std::string_view text, std::int64_t min, std::int64_t max);

/// A finite decimal number in [min, max].
double parse_number(std::string_view text, double min, double max);

/// A size of at least one byte: "5GB", "2GiB", "1.5MiB", "4096". Units are B, kB, MB, GB, TB
/// (powers of 1000) and KiB, MiB, GiB, TiB (of 1024); a fraction of a byte is cut off. Below 2^63.
std::uint64_t parse_bytes(std::string_view text);

struct Shape {
  std::int64_t rows = 0;
  std::int64_t k = 0;
};
/// "256x128": rows x k, each in 1..2^40.
Shape parse_shape(std::string_view text);

std::string format_bytes(double bytes);       // "512 B", "86.7 MiB"
std::string format_duration(double seconds);  // "3.2 ms", "4.1 s", "2 min 05 s", "3 h 07 min"
std::string format_fixed(double value, int digits);        // "12.30", "NaN", "-inf"
std::string format_significant(double value, int digits);  // "0.0123", "1.23e-05", "NaN", "-inf"
std::string format_rate(double bytes_per_second);          // "3.21", in GB/s: powers of 1000
std::string format_count(std::uint64_t value);             // "1,234,567"

}  // namespace blockscale::cli
