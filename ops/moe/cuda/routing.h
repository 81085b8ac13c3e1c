// How route and moe_sort become kernel launches: pure functions of shapes and the chip, so they are
// tested without a GPU. What ids say is not known here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "blockscale/device.h"
#include "blockscale/moe.h"
#include "core/launch_shape.h"
#include "ops/moe/kernels/pad.cuh"
#include "ops/moe/kernels/route.cuh"
#include "ops/moe/kernels/sort.cuh"
#include "ops/moe/layer.h"

namespace blockscale::moe_detail {

/// One launch of kRouteKernel.
struct RoutePlan {
  int architecture = 0;  // of the chip that it is for
  LaunchShape shape;
  RouteParams params;

  bool is_needed() const { return params.tokens != 0; }
  std::string str() const;
};

/// One launch: kSortKernel or kPadKernel.
struct SortStep {
  std::size_t kernel = 0;
  LaunchShape shape;
  std::variant<SortParams, PadParams> params;

  std::string str() const;
};

struct SortPlan {
  int architecture = 0;         // of the chip that it is for
  std::vector<SortStep> steps;  // in order; none where no result is to be made
  std::int64_t workspace_bytes = 0;

  std::string str() const;
};

/// Of validated arguments. `workspace` is not looked at.
RoutePlan plan_route(const RouteArguments& validated, const cuda::Chip& chip);
/// `weights` are sorted too; without tiles.
SortPlan plan_sort(const MoeSortArguments& validated, const cuda::Chip& chip,
                   void* workspace = nullptr, const RowWeights& weights = {});

}  // namespace blockscale::moe_detail
