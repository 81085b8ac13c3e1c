// Weights in forms of few bits that no dialect reads, found by names and dtypes where nothing
// describes them.
#pragma once

#include <set>
#include <string_view>

#include "models/dialects/dialect.h"

namespace blockscale::models {

/// Throws unsupported naming the first tensor, of those that are no part of a weight (not in
/// `claimed`), that holds codes of another producer, or something that scales such codes: taken
/// as plain numbers they would lose what they mean.
void check_low_bit_forms(const TensorStore& store, const std::set<std::string_view>& claimed);

}  // namespace blockscale::models
