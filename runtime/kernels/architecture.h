// What kernels are compiled for, and which chips run that.
#pragma once

#include <string>

namespace blockscale::runtime {

/// "sm_90a", taken apart.
struct Architecture {
  int number = 0;   // 90; 0 of a text that is none
  char suffix = 0;  // 'a' or 'f', or 0

  static Architecture of(const std::string& text);
  /// Whether its code runs on a device: that of sm_90a on 9.0 alone, of sm_100f on 10.x, of sm_80
  /// on 8.0 and up to 8.9.
  bool runs_on(int compute_capability) const;
  /// "9.0", or "10.x" of a family.
  std::string chips() const;
};

bool runs_on(const std::string& architecture, int compute_capability);

/// Whether kernels for such chips are compiled and emulated, and have never run on one.
bool is_emulated_only(int compute_capability);
inline constexpr const char* kEmulatedOnly = "compiled and emulated, never run on silicon";

/// That kernels of the library have: 1 on 12.x, where nothing is brought to several at a time.
int most_cluster_blocks(int compute_capability);

/// 90 as "9.0".
std::string compute_capability_text(int compute_capability);

}  // namespace blockscale::runtime
