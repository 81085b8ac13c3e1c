// The files of a result that hold its tensors: which are in which, in what order, and their names.
#pragma once

#include <cstdint>
#include <string>

#include "models/convert/plan.h"

namespace blockscale::models {

/// Throws `unsupported` where two weights would be written under one name.
void check_unique_names(const Plan& plan);

/// Divides the planned tensors, in their order, among shards of at most `shard_bytes`, but for
/// single tensors that are larger; all in one if `file_name` names it.
void fill_shards(Plan& plan, std::uint64_t shard_bytes, const std::string& file_name);

/// Of a plan whose shards are filled.
std::string index_file_name(const Plan& plan);

}  // namespace blockscale::models
