// What the quantizers' kernels are launched with, as it follows from a call's arguments.
#pragma once

#include <cstdint>

#include "blockscale/quantize.h"
#include "ops/quantize/kernels/config.h"
#include "ops/quantize/validate.h"

namespace blockscale::quantize_detail {

/// What kernels that quantize `a` are launched with, but for what a plan decides: tiles, workspace,
/// the order of launches. `a` is validated. Throws `unsupported` for sizes that kernels cannot
/// number.
QuantizeParams quantize_params(const QuantizeArguments& a, const QuantizeOptions& options);

/// Throws `unsupported` for an input that no quantizer's kernel fuses.
void check_fused(const FusedInput& input);

/// Whether the codes of each chunk start at a multiple of their widest store.
bool has_value_vectors(const QuantizeParams& p, const QuantizeConfig& c);
/// The same of codes that are stored `store` bytes at a time.
bool has_value_vectors(const QuantizeParams& p, std::int64_t store);

}  // namespace blockscale::quantize_detail
