#include "listing.h"

namespace blockscale::cli {

std::string shown_text(std::size_t shown, std::size_t all) {
  if (shown == all) return "";
  return std::to_string(shown) + " of " + plural(static_cast<std::int64_t>(all), "tensor") +
         " shown\n";
}

std::vector<CheckpointTensor> tensors_of(const Checkpoint& checkpoint,
                                         const std::vector<std::string>& patterns) {
  if (patterns.empty()) return checkpoint.tensors();
  std::vector<std::string> names;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) names.push_back(tensor.name);
  std::vector<CheckpointTensor> chosen;
  for (const std::string& name : matching_weights(names, patterns, "tensors")) {
    chosen.push_back(*checkpoint.find(name));
  }
  return chosen;
}

std::int64_t element_count(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

}  // namespace blockscale::cli
