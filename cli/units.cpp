#include "units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

namespace blockscale::cli {
namespace {

std::string quoted(std::string_view text) {
  return "'" + std::string(text) + "'";
}

struct Unit {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array kUnits = {
    Unit{"", 1},
    Unit{"B", 1},
    Unit{"kB", 1'000},
    Unit{"MB", 1'000'000},
    Unit{"GB", 1'000'000'000},
    Unit{"TB", 1'000'000'000'000},
    Unit{"KiB", std::uint64_t{1} << 10},
    Unit{"MiB", std::uint64_t{1} << 20},
    Unit{"GiB", std::uint64_t{1} << 30},
    Unit{"TiB", std::uint64_t{1} << 40},
};

/// How many of the first characters of `text` are decimal digits.
std::size_t count_digits(std::string_view text) {
  const auto end = text.find_first_not_of("0123456789");
  return end == std::string_view::npos ? text.size() : end;
}

[[noreturn]] void fail_bytes(std::string_view text) {
  throw ParseError(quoted(text) +
                   " is no size: write a number and a unit of B, kB, MB, GB, TB, KiB, MiB, GiB, "
                   "TiB, such as 5GB or 1.5GiB");
}

[[noreturn]] void fail_byte_range(std::string_view text) {
  throw ParseError(quoted(text) + " is out of range: a size is at least 1 byte and below 2^63");
}

}  // namespace

std::int64_t parse_integer(std::string_view text, std::int64_t min, std::int64_t max) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string allowed = std::to_string(min) + ".." + std::to_string(max);
  if (text.empty() || rest != end || error == std::errc::invalid_argument) {
    throw ParseError(quoted(text) + " is no integer; allowed are " + allowed);
  }
  if (error == std::errc::result_out_of_range || value < min || value > max) {
    throw ParseError(quoted(text) + " is out of range; allowed are " + allowed);
  }
  return value;
}

double parse_number(std::string_view text, double min, double max) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string allowed = format_significant(min, 6) + ".." + format_significant(max, 6);
  if (text.empty() || rest != end || error == std::errc::invalid_argument ||
      !std::isfinite(value)) {
    throw ParseError(quoted(text) + " is no finite number; allowed are " + allowed);
  }
  if (error == std::errc::result_out_of_range || value < min || value > max) {
    throw ParseError(quoted(text) + " is out of range; allowed are " + allowed);
  }
  return value;
}

std::uint64_t parse_bytes(std::string_view text) {
  constexpr std::size_t kMostDigits = 19;  // of either part: below 2^64
  const std::string_view whole = text.substr(0, count_digits(text));
  std::string_view rest = text.substr(whole.size());
  std::string_view fraction;
  if (rest.starts_with('.')) {
    fraction = rest.substr(1, count_digits(rest.substr(1)));
    rest = rest.substr(1 + fraction.size());
    if (fraction.empty()) fail_bytes(text);
  }
  const Unit* unit = nullptr;
  for (const Unit& candidate : kUnits) {
    if (candidate.name == rest) unit = &candidate;
  }
  if (whole.empty() || unit == nullptr || fraction.size() > kMostDigits) fail_bytes(text);
  if (whole.size() > kMostDigits) fail_byte_range(text);

  __extension__ using Wide = unsigned __int128;
  std::uint64_t integer = 0;
  std::from_chars(whole.data(), whole.data() + whole.size(), integer);
  std::uint64_t numerator = 0;
  std::from_chars(fraction.data(), fraction.data() + fraction.size(), numerator);
  Wide denominator = 1;
  for (std::size_t i = 0; i < fraction.size(); ++i) denominator *= 10;
  const Wide bytes = Wide{integer} * unit->bytes + Wide{numerator} * unit->bytes / denominator;
  if (bytes == 0 || bytes > std::numeric_limits<std::int64_t>::max()) fail_byte_range(text);
  return static_cast<std::uint64_t>(bytes);
}

Shape parse_shape(std::string_view text) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 40;
  const auto cross = text.find('x');
  if (cross == std::string_view::npos) {
    throw ParseError(quoted(text) + " is no shape: write rows x k, such as 256x128");
  }
  return {parse_integer(text.substr(0, cross), 1, kLargest),
          parse_integer(text.substr(cross + 1), 1, kLargest)};
}

std::string format_fixed(double value, int digits) {
  if (std::isnan(value)) return "NaN";  // printf may give it a sign
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 352> buffer{};  // the longest: DBL_MAX with 40 digits
  const int length = std::snprintf(buffer.data(), buffer.size(), "%.*f", digits, value);
  return std::string(buffer.data(), static_cast<std::size_t>(length));
}

std::string format_significant(double value, int digits) {
  if (std::isnan(value)) return "NaN";
  std::array<char, 64> buffer{};
  const int length = std::snprintf(buffer.data(), buffer.size(), "%.*g", digits, value);
  return std::string(buffer.data(), static_cast<std::size_t>(length));
}

std::string format_bytes(double bytes) {
  constexpr std::array kNames = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  // 1023.95 and above would print as 1024.0.
  while (unit + 1 < kNames.size() && bytes >= (unit == 0 ? 1024.0 : 1023.95)) {
    bytes /= 1024.0;
    ++unit;
  }
  return format_fixed(bytes, unit == 0 ? 0 : 1) + " " + kNames[unit];
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 0.9995e-3) return format_significant(seconds * 1e6, 3) + " us";
  if (seconds < 0.9995) return format_significant(seconds * 1e3, 3) + " ms";
  if (seconds < 59.95) return format_fixed(seconds, 1) + " s";
  const auto two_digits = [](std::int64_t value) {
    return (value < 10 ? "0" : "") + std::to_string(value);
  };
  if (seconds < 3599.5) {
    const std::int64_t total = std::llround(seconds);
    return std::to_string(total / 60) + " min " + two_digits(total % 60) + " s";
  }
  if (seconds > 1e9) return "?";
  const std::int64_t minutes = std::llround(seconds / 60);
  return std::to_string(minutes / 60) + " h " + two_digits(minutes % 60) + " min";
}

std::string format_rate(double bytes_per_second) {
  return format_fixed(bytes_per_second * 1e-9, 2);
}

std::string format_count(std::uint64_t value) {
  std::string digits = std::to_string(value);
  for (std::size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

}  // namespace blockscale::cli
