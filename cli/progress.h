// The progress of a conversion: a bar on a terminal, plain lines elsewhere.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "blockscale/convert.h"

namespace blockscale::cli {

/// What one update shows. `reused` bytes were done before the clock started (by --resume), so they
/// count as done but not in the rate.
struct ProgressState {
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  std::uint64_t reused = 0;
  double seconds = 0;
  std::string tensor;
};

/// " 42% [=======>      ] 1.2 GiB of 2.9 GiB, 310.0 MiB/s, 5.6 s left, encoder.layer.3..." in at
/// most `width` columns. With less room the name goes first, then the amounts, the rate and the
/// bar; the share and the time left stay as long as they fit.
std::string progress_bar(const ProgressState& state, std::size_t width);

/// The same in words, for logs.
std::string progress_line(const ProgressState& state);

class Progress {
 public:
  enum class Style { bar, lines, none };

  /// A bar if `stream` is a terminal, else lines.
  static Style style_for(std::FILE* stream);

  Progress(std::FILE* stream, Style style);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Prints if enough time has passed since it last did. `seconds` is a clock that never goes back.
  void update(const ConvertProgress& progress, double seconds);
  /// Clears the bar; what follows starts on a clean line.
  void finish();

 private:
  std::FILE* stream_;
  Style style_;
  bool started_ = false;
  bool bar_shown_ = false;
  double start_seconds_ = 0;
  double next_seconds_ = 0;
  std::uint64_t reused_ = 0;
};

}  // namespace blockscale::cli
