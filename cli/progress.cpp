#include "progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "text.h"
#include "units.h"

namespace blockscale::cli {
namespace {

constexpr double kBarPeriod = 0.1;   // seconds between two drawings
constexpr double kLinePeriod = 5.0;  // seconds between two lines
constexpr std::size_t kMostCells = 24;
constexpr std::size_t kLeastCells = 4;
constexpr std::size_t kFallbackWidth = 80;

double fraction_done(const ProgressState& state) {
  if (state.total == 0) return 1.0;
  return std::min(1.0, static_cast<double>(state.done) / static_cast<double>(state.total));
}

std::string percent(double fraction) {
  const std::string digits = std::to_string(static_cast<int>(fraction * 100));
  return std::string(3 - std::min<std::size_t>(3, digits.size()), ' ') + digits + "%";
}

/// "1.2 GiB of 2.9 GiB"
std::string amounts(const ProgressState& state) {
  return format_bytes(static_cast<double>(state.done)) + " of " +
         format_bytes(static_cast<double>(state.total));
}

/// "310.0 MiB/s" and "5.6 s left"; empty before there is a rate.
struct Pace {
  std::string rate;
  std::string left;
};

Pace pace_of(const ProgressState& state) {
  const double fresh = static_cast<double>(state.done - std::min(state.done, state.reused));
  if (fresh <= 0 || state.seconds <= 0) return {};
  const double rate = fresh / state.seconds;
  const double left = static_cast<double>(state.total - std::min(state.done, state.total)) / rate;
  return {format_bytes(rate) + "/s", format_duration(left) + " left"};
}

/// Those that are not empty, in order, joined by ", ".
std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) {
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  }
  return text;
}

/// "[=======>      ]" of `cells` columns and its brackets.
std::string bar(double fraction, std::size_t cells) {
  const auto filled = static_cast<std::size_t>(fraction * static_cast<double>(cells));
  std::string text(filled, '=');
  if (filled < cells) text += ">" + std::string(cells - filled - 1, ' ');
  return "[" + text + "]";
}

std::size_t terminal_width(std::FILE* stream) {
  winsize size{};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kFallbackWidth;
  return size.ws_col;
}

}  // namespace

std::string progress_bar(const ProgressState& state, std::size_t width) {
  const double fraction = fraction_done(state);
  const std::string share = percent(fraction);
  const Pace pace = pace_of(state);
  // With less room than this the name says nothing: the numbers alone.
  constexpr std::size_t kLeastName = 8;
  const std::string whole = share + " " + bar(fraction, kMostCells) + " " +
                            joined({amounts(state), pace.rate, pace.left}) + ", ";
  if (whole.size() + kLeastName <= width) {
    return whole + shortened(printable(state.tensor), width - whole.size());
  }
  for (const std::string& numbers : {joined({amounts(state), pace.rate, pace.left}),
                                     joined({pace.rate, pace.left}), pace.left}) {
    const std::size_t fixed = share.size() + 4 + numbers.size();  // brackets and two spaces
    if (numbers.empty() || fixed + kLeastCells > width) continue;
    return share + " " + bar(fraction, std::min(kMostCells, width - fixed)) + " " + numbers;
  }
  const std::string shortest = pace.left.empty() ? share : share + " " + pace.left;
  return shortest.size() <= width ? shortest : share.substr(0, width);
}

std::string progress_line(const ProgressState& state) {
  const Pace pace = pace_of(state);
  return joined({percent(fraction_done(state)), amounts(state), pace.rate, pace.left,
                 printable(state.tensor)});
}

Progress::Style Progress::style_for(std::FILE* stream) {
  return isatty(fileno(stream)) != 0 ? Style::bar : Style::lines;
}

Progress::Progress(std::FILE* stream, Style style) : stream_(stream), style_(style) {}

Progress::~Progress() {
  finish();
}

void Progress::update(const ConvertProgress& progress, double seconds) {
  if (style_ == Style::none) return;
  const double period = style_ == Style::bar ? kBarPeriod : kLinePeriod;
  if (!started_) {
    started_ = true;
    start_seconds_ = seconds;
    reused_ = progress.source_bytes_done;
    next_seconds_ = style_ == Style::bar ? seconds : seconds + period;
  }
  if (seconds < next_seconds_) return;
  next_seconds_ = seconds + period;
  const ProgressState state{progress.source_bytes_done, progress.source_bytes_total, reused_,
                            seconds - start_seconds_, progress.tensor};
  if (style_ == Style::bar) {
    // One column stays free: a full line would wrap on some terminals. ESC[K clears what is left.
    const std::string bar = progress_bar(state, terminal_width(stream_) - 1);
    std::fprintf(stream_, "\r%s\x1b[K", bar.c_str());
    bar_shown_ = true;
  } else {
    std::fprintf(stream_, "blockscale convert: %s\n", progress_line(state).c_str());
  }
  std::fflush(stream_);
}

void Progress::finish() {
  if (bar_shown_) std::fprintf(stream_, "\r\x1b[K");
  std::fflush(stream_);
  bar_shown_ = false;
}

}  // namespace blockscale::cli
