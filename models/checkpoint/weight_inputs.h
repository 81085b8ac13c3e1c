// How the inputs of a quantized weight are quantized, for those who run it.
#pragma once

#include "models/checkpoint/checkpoint.h"
#include "models/convert/layers/input_choice.h"

namespace blockscale::models {

/// What `Checkpoint::inputs` gives of tensor `i`; `said` is the checkpoint's.
WeightInputs inputs_of(const StoredCheckpoint& source, const SourceInputs& said, std::size_t i);

}  // namespace blockscale::models
