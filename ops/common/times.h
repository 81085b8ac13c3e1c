// Times of repeated runs.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace blockscale {

/// Seconds of `repeats` runs of `body`, the fastest first, after one that is not counted.
template <class Body>
std::vector<double> sorted_times(int repeats, const Body& body) {
  body();
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    seconds.push_back(elapsed.count());
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds;
}

}  // namespace blockscale
