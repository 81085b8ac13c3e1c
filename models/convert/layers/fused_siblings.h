// Weights that engines fuse into one (q, k and v; gate and up), and what keeps them from it.
#pragma once

#include <string>
#include <vector>

#include "models/convert/plan.h"

namespace blockscale::models {

/// Key of the weights that are fused with this one: engines do it along the rows, so that all other
/// dimensions are equal.
std::string fusion_key(const CheckpointTensor& tensor);

struct Siblings {
  std::vector<std::size_t> members;  // indices into Plan::tensors, at least two
  bool same_recipe = true;
  bool same_tensor_scale = true;  // of NVFP4, as far as they are copied
};

/// The siblings of the plan that do not become one weight.
std::vector<Siblings> differing_siblings(const Plan& plan);

/// One line for each kind of difference, with an example and how many groups are like it.
std::vector<std::string> warnings_of(const std::vector<Siblings>& differing, const Plan& plan);

}  // namespace blockscale::models
