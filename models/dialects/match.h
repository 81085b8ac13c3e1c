// Whether tensors fit together: what match (dialects.cpp) and the forms that no recipe has
// (value_forms.cpp) share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/dialects/dialect.h"

namespace blockscale::models {

/// "[2, 3]".
std::string shape_text(const std::vector<std::int64_t>& shape);

/// Whether tensors of this dtype hold codes of `element`.
bool is_value_dtype(Format element, DType dtype, bool byte_values);
/// Whether tensors of this dtype hold scales of `scale`; U8 those of NVFP4 where `byte_scales`.
bool is_scale_dtype(Format scale, DType dtype, bool byte_scales = false);

/// What is wrong with the tensor scale and the input scale of a weight, or "".
std::string match_factors(const FoundWeight& found, Recipe recipe,
                          const std::vector<std::int64_t>& shape);

/// `found` in one of the forms that conversions read by their values, and that nobody writes: FP8
/// in blocks of `odd_blocks`; stacks [E, in, out] that are packed along `in`; FP8 stacks of that
/// shape with one scale an output. Candidates are recipes that the configuration allows.
std::optional<StoredWeight> match_value_form(const FoundWeight& found,
                                             std::span<const Recipe> candidates);

}  // namespace blockscale::models
