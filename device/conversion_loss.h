// What kernels behind a conversion of an operand are told of it: two words of the workspace.
#pragma once

#include "core/config.h"

namespace blockscale {

/// Whether the type that an operand was converted to lacks one of its numbers. Then the product of
/// what was converted leaves D to another one, of the operand itself. Nobody zeroes the words
/// before: a token that happens to lie in a workspace costs that product's time, and nothing else,
/// as it is right in any case; where there is none, nothing was lost. Each word is written by one
/// launch and read by the next ones (device/conversion_loss.cuh), which takes the token back, too:
/// so graphs may be launched again with other numbers, and a call has the bits that it had before.
struct ConversionLoss {
  /// Four NaNs of bf16 that no conversion writes.
  static constexpr uint64_t kToken = 0xFFD37FA9FFB17FC7;

  uint64_t found;      // kToken: by a conversion
  uint64_t passed_on;  // kToken: by the product of what was converted, to the other one
};

}  // namespace blockscale
