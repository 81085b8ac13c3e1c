// Rows of weights of whole numbers, as f32. IntegerForm (models/dialects/dialect.h) has the
// formula.
#pragma once

#include <vector>

#include "models/checkpoint/checkpoint.h"
#include "models/checkpoint/rows.h"

namespace blockscale::models {

/// As read_rows, of a weight whose form has bits.
MatrixView read_integers(const StoredCheckpoint& checkpoint, std::size_t tensor,
                         const RowRange& range, std::vector<std::byte>& buffer);

}  // namespace blockscale::models
