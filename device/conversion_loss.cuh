// The launches that share a ConversionLoss, in this order: conversions, the product of what they
// wrote, and the product of the operands. Each has waited for the one before it.
#pragma once

#include "device/conversion_loss.h"
#include "device/kernel.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/special_registers.h"

namespace blockscale {
namespace conversion_loss {

BLOCKSCALE_DEVICE bool is_first_thread() {
  return ptx::ctaid_x() == 0 && ptx::ctaid_y() == 0 && ptx::tid_x() == 0;
}

/// By any threads of a conversion.
BLOCKSCALE_DEVICE void report(ConversionLoss* loss) {
  ptx::st_relaxed_gpu_global(&loss->found, ConversionLoss::kToken);
}

/// By all threads of the first product: whether it leaves D to the second.
BLOCKSCALE_DEVICE bool pass_on(ConversionLoss* loss) {
  const bool is_lost = ptx::ld_global(&loss->found) == ConversionLoss::kToken;
  if (is_first_thread()) {
    ptx::st_global(&loss->passed_on, is_lost ? ConversionLoss::kToken : uint64_t{0});
  }
  return is_lost;
}

/// By all threads of the second product: whether D is left to it.
BLOCKSCALE_DEVICE bool take(ConversionLoss* loss) {
  const bool is_lost = ptx::ld_global(&loss->passed_on) == ConversionLoss::kToken;
  if (is_lost && is_first_thread()) ptx::st_global(&loss->found, uint64_t{0});
  return is_lost;
}

}  // namespace conversion_loss
}  // namespace blockscale
