#include "runtime/kernels/architecture.h"

#include <charconv>
#include <string_view>

namespace blockscale::runtime {

Architecture Architecture::of(const std::string& text) {
  constexpr std::string_view kBegin = "sm_";
  if (!text.starts_with(kBegin)) return {};
  Architecture a;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + kBegin.size(), last, a.number);
  const std::string_view suffix(end, static_cast<std::size_t>(last - end));
  if (error != std::errc() || (!suffix.empty() && suffix != "a" && suffix != "f")) return {};
  if (!suffix.empty()) a.suffix = suffix.front();
  return a;
}

bool Architecture::runs_on(int compute_capability) const {
  if (number == 0 || suffix == 'a') return number != 0 && compute_capability == number;
  return compute_capability >= number && compute_capability / 10 == number / 10;
}

std::string Architecture::chips() const {
  return suffix == 'a' ? compute_capability_text(number) : std::to_string(number / 10) + ".x";
}

bool runs_on(const std::string& architecture, int compute_capability) {
  return Architecture::of(architecture).runs_on(compute_capability);
}

bool is_emulated_only(int compute_capability) {
  return compute_capability != 90;
}

int most_cluster_blocks(int compute_capability) {
  return compute_capability / 10 == 12 ? 1 : 8;
}

std::string compute_capability_text(int compute_capability) {
  return std::to_string(compute_capability / 10) + "." + std::to_string(compute_capability % 10);
}

}  // namespace blockscale::runtime
