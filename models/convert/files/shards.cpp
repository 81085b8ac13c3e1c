#include "models/convert/files/shards.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <string_view>
#include <vector>

#include "models/safetensors/index_file.h"
#include "models/text.h"

namespace blockscale::models {
namespace {

constexpr std::string_view kSuffix = ".safetensors";

/// What the source calls its files: "model".
std::string stem_of(const Plan& plan) {
  std::string stem = plan.source->store().files()[0].path().filename().string();
  stem.resize(stem.size() - (stem.ends_with(kSuffix) ? kSuffix.size() : 0));
  const std::size_t of = stem.rfind("-of-");
  const std::size_t dash = of == std::string::npos || of == 0 ? of : stem.rfind('-', of - 1);
  if (dash != std::string::npos && dash > 0) stem.resize(dash);
  if (plan.source->store().files().size() > 1 && dash == std::string::npos) stem = "model";
  return stem;
}

/// model.safetensors, or model-00001-of-00003.safetensors.
std::string shard_name(const Plan& plan, std::size_t i) {
  const std::string stem = stem_of(plan);
  if (plan.shards.size() == 1) return stem + std::string(kSuffix);
  char number[64];
  std::snprintf(number, sizeof number, "-%05zu-of-%05zu", i + 1, plan.shards.size());
  return stem + number + std::string(kSuffix);
}

/// Widest elements first, so that everything is aligned; then by name.
void order_shard(Plan& plan, PlannedShard& shard) {
  struct Slot {
    const TensorInfo* info;
    std::size_t weight, part;
  };
  std::vector<Slot> slots;
  for (const std::size_t weight : shard.weights) {
    PlannedTensor& planned = plan.tensors[weight];
    planned.slots.resize(planned.parts.size());
    for (std::size_t p = 0; p < planned.parts.size(); ++p) {
      slots.push_back({&planned.parts[p].info, weight, p});
    }
  }
  std::sort(slots.begin(), slots.end(), [](const Slot& a, const Slot& b) {
    const int bits_a = dtype_bits(a.info->dtype);
    const int bits_b = dtype_bits(b.info->dtype);
    return bits_a != bits_b ? bits_a > bits_b : a.info->name < b.info->name;
  });
  for (const Slot& slot : slots) {
    plan.tensors[slot.weight].slots[slot.part] = shard.tensors.size();
    shard.tensors.push_back(*slot.info);
  }
}

}  // namespace

void check_unique_names(const Plan& plan) {
  std::map<std::string_view, std::string_view> owner;
  for (const PlannedTensor& planned : plan.tensors) {
    const std::string& weight = plan.source->tensors()[planned.source].name;
    for (const PartToWrite& part : planned.parts) {
      const auto [found, added] = owner.emplace(part.info.name, weight);
      if (added) continue;
      throw Error(ErrorCode::unsupported, "source",
                  "tensors " + quote(found->second) + " and " + quote(weight) +
                      " would both be written as " + quote(part.info.name));
    }
  }
}

void fill_shards(Plan& plan, std::uint64_t shard_bytes, const std::string& file_name) {
  std::uint64_t filled = 0;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const std::uint64_t bytes = plan.tensors[i].bytes;
    const bool full =
        filled > 0 && bytes > 0 && (filled > shard_bytes || bytes > shard_bytes - filled);
    if (plan.shards.empty() || (full && file_name.empty())) {
      plan.shards.emplace_back();
      filled = 0;
    }
    filled += bytes;
    plan.tensors[i].shard = plan.shards.size() - 1;
    plan.shards.back().weights.push_back(i);
    plan.bytes += bytes;
    plan.source_bytes += plan.source->tensors()[plan.tensors[i].source].bytes;
  }
  for (std::size_t i = 0; i < plan.shards.size(); ++i) {
    plan.shards[i].file = file_name.empty() ? shard_name(plan, i) : file_name;
    order_shard(plan, plan.shards[i]);
  }
}

std::string index_file_name(const Plan& plan) {
  const bool several = plan.shards.size() > 1;
  const std::string& first = plan.shards[0].file;
  const std::string stem = first.substr(
      0, several ? first.rfind('-', first.rfind("-of-") - 1) : first.size() - kSuffix.size());
  return stem + std::string(kIndexSuffix);
}

}  // namespace blockscale::models
