// How a layer becomes kernel launches: a pure function of shapes, recipes, strides and the chip, so
// it is tested without a GPU. Where entries go is not known here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "blockscale/device.h"
#include "blockscale/moe.h"
#include "core/launch_shape.h"
#include "ops/gemm/cuda/product_plan.h"
#include "ops/grouped_gemm/cuda/plan.h"
#include "ops/moe/cuda/routing.h"
#include "ops/moe/kernels/finalize.cuh"
#include "ops/moe/kernels/join_scales.cuh"
#include "ops/moe/kernels/weigh.cuh"
#include "ops/moe/layer.h"
#include "ops/quantize/cuda/plan.h"

namespace blockscale::moe_detail {

/// Launches of some tokens, in the order of the members but for the last.
struct MoePartPlan {
  struct JoinScales {
    LaunchShape shape;
    JoinScalesParams params;
  };
  struct Weigh {
    LaunchShape shape;
    WeighParams params;
  };
  struct Finalize {
    LaunchShape shape;
    FinalizeParams params;
  };

  struct Shared {
    std::optional<quantize_detail::QuantizePlan> quantize;
    gemm_detail::ProductPlan up, down;
  };

  std::int64_t tokens = 0;
  std::optional<JoinScales> join_scales;
  std::optional<SortPlan> sort;
  std::optional<Weigh> weigh;
  std::optional<quantize_detail::QuantizePlan> quantize;
  std::optional<Shared> shared;
  grouped_gemm_detail::GroupedPlan up, down;
  Finalize finalize;  // before `up` where `down` adds rows to what it makes
  bool adds = false;

  /// Whether FP8 kernels compute all products.
  bool is_fp8() const;
  std::string str() const;
};

struct MoePlan {
  int architecture = 0;            // of the chip that it is for
  std::vector<MoePartPlan> parts;  // all but the last of as many tokens; none where y is empty
  std::int64_t workspace_bytes = 0;

  std::string str() const;
};

/// Nothing is sorted where there are few entries that kernels of few rows take. Else the first
/// product gathers where its kernel does that by itself (docs/log/moe.md), and where it does not
/// quantizers do, if they have a kernel for it.
Gather gather_of(const MoeArguments& validated, const cuda::Chip& chip);

/// What a workspace must hold, and for how many tokens at a time.
struct MoeParts {
  std::int64_t tokens = 0;           // of all parts but the last; 0 where y is empty
  std::int64_t workspace_bytes = 0;  // a multiple of 16
  Gather gather = Gather::product;
};

/// Of validated arguments. Throws `unsupported` as the plans of the steps do.
MoeParts parts_of(const MoeArguments& validated, const MoeOptions& options, const cuda::Chip& chip);
/// In a workspace that is apart from the arguments' memory, or in none to describe it.
MoePlan plan_moe(const MoeArguments& validated, const MoeParts& parts, const cuda::Chip& chip,
                 void* workspace = kNoMemory);

}  // namespace blockscale::moe_detail
