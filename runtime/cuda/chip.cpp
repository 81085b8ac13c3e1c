// Chips by name: what plans are described for where no such chip is at hand.
#include <algorithm>
#include <iterator>

#include "blockscale/device.h"
#include "blockscale/error.h"

namespace blockscale::cuda {
namespace {

/// Names that a text is a part of, or the one that it is: "H200" is a part of "NVIDIA GH200", too.
std::vector<const Chip*> chips_of(const std::string& text) {
  std::vector<const Chip*> found;
  for (const Chip& chip : known_chips()) {
    if (chip.name == text || chip.name == "NVIDIA " + text) return {&chip};
    if (!text.empty() && chip.name.find(text) != std::string::npos) found.push_back(&chip);
  }
  return found;
}

}  // namespace

const std::vector<Chip>& known_chips() {
  constexpr std::int64_t kLarge = 227 << 10, kSmall = 99 << 10;  // shared memory of a block
  static const auto& chips = *new std::vector<Chip>{
      {"NVIDIA H200", 90, 132, kLarge, 60 << 20},
      {"NVIDIA H100 80GB HBM3", 90, 132, kLarge, 50 << 20},
      {"NVIDIA H20", 90, 78, kLarge, 60 << 20},
      {"NVIDIA B200", 100, 148, kLarge, 126 << 20},
      {"NVIDIA B300", 103, 148, kLarge, 126 << 20},
      {"NVIDIA RTX PRO 6000 Blackwell", 120, 188, kSmall, 128 << 20},
      {"NVIDIA GeForce RTX 5090", 120, 170, kSmall, 96 << 20},
      {"NVIDIA GB10", 121, 48, kSmall, 24 << 20},
  };
  return chips;
}

const Chip& chip_named(const std::string& name) {
  const std::vector<const Chip*> found = chips_of(name);
  if (found.size() == 1) return *found.front();
  std::string known;
  for (const Chip& chip : known_chips()) known += (known.empty() ? "" : ", ") + chip.name;
  throw Error(ErrorCode::invalid_argument, "chip", "is '" + name + "', must be of one of " + known);
}

Chip default_chip() {
  try {
    return current_device();
  } catch (const Error&) {  // none is current
  }
  try {
    return devices().front();
  } catch (const Error&) {  // there is none
    return {};
  }
}

}  // namespace blockscale::cuda
