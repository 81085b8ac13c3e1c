// ComfyUI's weights of whole numbers: how comfy-kitchen 0.2.40 stores them, by format. They are
// read by their values, which models/checkpoint/integers.h has.
#pragma once

#include <string>

#include "models/dialects/comfy.h"

namespace blockscale::models {

/// A layer's tensors and what is said of it.
struct ComfySource {
  const TensorStore& store;
  const std::string& layer;
  const ComfyLayer& said;
  const char* format;
  FoundWeight found;  // X.weight and X.weight_scale
};

/// "what is said of layer "X"", of messages.
std::string said_of(const std::string& layer);

// Each throws corrupt_file naming the tensor whose dtype or shape is another, and unsupported
// naming what says a word that is not readable. K columns, N rows, groups of g columns.

/// `weight` I8 [N, K], `weight_scale` of any one element or [N, 1]. `convrot` and
/// `convrot_groupsize` say whether and how its columns are rotated.
StoredWeight match_int8(const ComfySource& source);

/// `weight` I8 [N, K / 2], two codes of -8 to 7 a byte, the first in its low bits; `weight_scale`
/// [N]; rotated.
StoredWeight match_convrot_w4a4(const ComfySource& source);

/// `weight` I8 [N, K / 2] or, of 6 bits, [N, 3 K / 4]; `weight_s_rel` F8_E4M3 (U8 likewise) or
/// floats [N, K / g]; `weight_s_channel` [N]; of 4 bits perhaps `weight_codebook` [16] and
/// `weight_correction` [K / g, N]; rotated.
StoredWeight match_asym_w4a8(const ComfySource& source);

/// `weight` I8 [N, K / 2] of codes 0 to 15; `weight_scale`, `weight_zeros` [K / g, N].
StoredWeight match_awq_w4a16(const ComfySource& source);

/// `weight` I8 [N, K / 2] of codes -8 to 7; `weight_scale` [K / 64, N]; `weight_smooth_factor` [K];
/// `weight_proj_down` [K, R], `weight_proj_up` [N, R].
StoredWeight match_svdquant_w4a4(const ComfySource& source);

}  // namespace blockscale::models
