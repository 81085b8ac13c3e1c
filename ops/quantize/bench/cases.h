// What the benchmarks of quantize on the CPU and on CUDA devices ask of their options alike.
#pragma once

#include <vector>

#include "blockscale/tensor.h"
#include "core/input_transform.h"

namespace blockscale::quantize_detail {

/// The recipes, dtypes and transforms of the cases: those wanted, or the usual ones where none
/// are. Throw invalid_argument for one that is not measured.
std::vector<Recipe> measured_recipes(const std::vector<Recipe>& wanted);
std::vector<Format> measured_dtypes(const std::vector<Format>& wanted);
std::vector<InputTransform> measured_transforms(const std::vector<InputTransform>& wanted);

}  // namespace blockscale::quantize_detail
