// Which of several safetensors files in a folder without an index are its checkpoint.
#pragma once

#include <string>
#include <vector>

namespace blockscale {

/// The files among `names` that loaders read, sorted: model.safetensors or
/// diffusion_pytorch_model.safetensors; else a complete numbered set,
/// STEM-00001-of-00003.safetensors and so on (a variant may stand before or behind the number,
/// numbers may begin at 0), of the same stems first; else the only file. Throws, naming `folder`,
/// not_found if there is none, or with what a set lacks, and invalid_argument with what is there if
/// nothing says which they are.
std::vector<std::string> choose_files(const std::vector<std::string>& names,
                                      const std::string& folder);

}  // namespace blockscale
