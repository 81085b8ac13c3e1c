// Experts of tokens and their weights, of a router's logits. A warp takes a token at a time: its
// lanes have every 32nd expert, whose scores and choices lie in shared memory.
//
// ops/moe/cpu/route.cpp computes the same bits.
#pragma once

#include "core/divisor.h"
#include "core/exponential.h"
#include "core/format.h"
#include "device/epilogue/elements.h"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/barrier.h"
#include "device/ptx/global_memory.h"
#include "device/ptx/grid.h"
#include "device/ptx/shared_memory.h"
#include "device/ptx/special_registers.h"
#include "device/ptx/warp.h"
#include "ops/moe/routing.h"

namespace blockscale {

inline constexpr int kRouteThreads = 128;
inline constexpr uint32_t kRouteWarps = kRouteThreads / 32;

struct RouteParams {
  const void* logits = nullptr;
  Format dtype = Format::f32;  // or f16, bf16
  int64_t row_stride = 0;      // elements
  const float* correction_bias = nullptr;
  uint32_t tokens = 0;
  uint32_t experts = 0;
  int32_t top_k = 1;
  bool is_sigmoid = false;
  bool renormalize = false;
  int32_t groups = 1;
  Divisor experts_of_group;
  int32_t top_groups = 1;
  int32_t best_of_group = 1;
  float scale = 1;
  int32_t shared_experts = 0;
  int32_t* ids = nullptr;
  float* weights = nullptr;

  /// Of shared memory: a score and a key of each expert, for each warp.
  BLOCKSCALE_HD constexpr uint32_t shared_bytes() const { return kRouteWarps * experts * 8; }
};

namespace routing {

/// A warp's token. All lanes call each function.
class RouteWarp {
 public:
  BLOCKSCALE_DEVICE RouteWarp(const RouteParams& params, ptx::SharedAddress shared)
      : p_(params), shared_(shared), lane_(ptx::laneid()) {}

  BLOCKSCALE_DEVICE void route(uint32_t token) const {
    if (p_.is_sigmoid) {
      set_sigmoids(token);
    } else {
      set_softmax(token);
    }
    set_keys();
    // Lanes read others' scores and keys behind this.
    ptx::bar_warp_sync(ptx::kFullMask);
    if (p_.groups > 1) choose_groups();
    choose(token);
    // Before the next token's scores.
    ptx::bar_warp_sync(ptx::kFullMask);
  }

 private:
  struct Best {
    uint32_t key;
    uint32_t expert;
  };

  BLOCKSCALE_DEVICE ptx::SharedAddress score_at(uint32_t expert) const {
    return shared_ + expert * 4;
  }
  BLOCKSCALE_DEVICE ptx::SharedAddress key_at(uint32_t expert) const {
    return shared_ + (p_.experts + expert) * 4;
  }

  BLOCKSCALE_DEVICE float logit(uint32_t token, uint32_t expert) const {
    const int64_t at = token * p_.row_stride + expert;
    if (p_.dtype == Format::f32) return ptx::ld_global(static_cast<const float*>(p_.logits) + at);
    return decode_element(p_.dtype, ptx::ld_global(static_cast<const uint16_t*>(p_.logits) + at));
  }

  BLOCKSCALE_DEVICE void set_sigmoids(uint32_t token) const {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t e = lane_; e < p_.experts; e += 32) {
      ptx::st_shared(score_at(e), math::sigmoid(logit(token, e)));
    }
  }

  BLOCKSCALE_DEVICE void set_softmax(uint32_t token) const {
    float largest = bit_cast<float>(0xFF800000u);
    BLOCKSCALE_UNROLL_BY_4
    for (uint32_t e = lane_; e < p_.experts; e += 32) {
      const float x = logit(token, e);
      ptx::st_shared(score_at(e), x);
      largest = ptx::max(largest, x);
    }
    BLOCKSCALE_UNROLL
    for (uint32_t step = 16; step > 0; step /= 2) {
      largest = ptx::max(largest, ptx::shfl_sync_bfly(ptx::kFullMask, largest, step));
    }
    float sum = 0;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t e = lane_; e < p_.experts; e += 32) {
      const float x = ptx::ld_shared<float>(score_at(e));
      const float y = math::exponential(ptx::add_rn(x, -largest));
      ptx::st_shared(score_at(e), y);
      sum = ptx::add_rn(sum, y);
    }
    BLOCKSCALE_UNROLL
    for (uint32_t step = 16; step > 0; step /= 2) {
      sum = ptx::add_rn(sum, ptx::shfl_sync_bfly(ptx::kFullMask, sum, step));
    }
    BLOCKSCALE_NO_UNROLL
    for (uint32_t e = lane_; e < p_.experts; e += 32) {
      ptx::st_shared(score_at(e), ptx::div_rn(ptx::ld_shared<float>(score_at(e)), sum));
    }
  }

  BLOCKSCALE_DEVICE void set_keys() const {
    BLOCKSCALE_NO_UNROLL
    for (uint32_t e = lane_; e < p_.experts; e += 32) {
      float choice = ptx::ld_shared<float>(score_at(e));
      if (p_.correction_bias != nullptr) {
        choice = ptx::add_rn(choice, ptx::ld_global(p_.correction_bias + e));
      }
      ptx::st_shared(key_at(e), key_of(choice));
    }
  }

  /// Each lane looks at a group. Experts of all but the best can no longer be chosen.
  BLOCKSCALE_DEVICE void choose_groups() const {
    uint32_t own = kTakenKey;
    if (lane_ < static_cast<uint32_t>(p_.groups)) own = key_of_group(lane_);
    uint32_t chosen = 0;  // a bit for each group
    BLOCKSCALE_NO_UNROLL
    for (int i = 0; i < p_.top_groups; ++i) {
      const uint32_t best = ptx::redux_sync_max(ptx::kFullMask, own);
      const uint32_t group =
          ptx::redux_sync_min(ptx::kFullMask, own == best ? lane_ : ptx::kFullMask);
      if (group == lane_) own = kTakenKey;
      chosen |= 1u << group;
    }
    // Behind what key_of_group reads.
    ptx::bar_warp_sync(ptx::kFullMask);
    BLOCKSCALE_NO_UNROLL
    for (uint32_t e = lane_; e < p_.experts; e += 32) {
      const uint32_t group = p_.experts_of_group.quotient(e);
      if ((chosen >> group & 1u) == 0) ptx::st_shared(key_at(e), kTakenKey);
    }
  }

  BLOCKSCALE_DEVICE uint32_t key_of_group(uint32_t group) const {
    const uint32_t size = p_.experts_of_group.divisor;
    uint32_t first = kTakenKey, second = kTakenKey;
    BLOCKSCALE_NO_UNROLL
    for (uint32_t i = 0; i < size; ++i) {
      // Lanes begin at different places, so that they read from different banks.
      const uint32_t place = p_.experts_of_group.remainder(i + group);
      const uint32_t key = ptx::ld_shared<uint32_t>(key_at(group * size + place));
      const uint32_t smaller = key < first ? key : first;
      second = smaller > second ? smaller : second;
      first = key > first ? key : first;
    }
    return group_key(first, second, p_.best_of_group);
  }

  /// Of this lane's experts.
  BLOCKSCALE_DEVICE Best best_of_lane() const {
    Best best = {kTakenKey, ptx::kFullMask};
    BLOCKSCALE_UNROLL_BY_4
    for (uint32_t e = lane_; e < p_.experts; e += 32) {
      const uint32_t key = ptx::ld_shared<uint32_t>(key_at(e));
      if (key > best.key) best = {key, e};
    }
    return best;
  }

  /// Lane j has the token's choice j; lanes behind these have the shared experts.
  BLOCKSCALE_DEVICE void choose(uint32_t token) const {
    Best own = best_of_lane();
    uint32_t id = 0;
    BLOCKSCALE_NO_UNROLL
    for (int32_t j = 0; j < p_.top_k; ++j) {
      const uint32_t key = ptx::redux_sync_max(ptx::kFullMask, own.key);
      const uint32_t expert =
          ptx::redux_sync_min(ptx::kFullMask, own.key == key ? own.expert : ptx::kFullMask);
      if (lane_ == static_cast<uint32_t>(j)) id = expert;
      if (own.expert == expert) {
        ptx::st_shared(key_at(expert), kTakenKey);
        own = best_of_lane();
      }
    }
    const bool has_choice = lane_ < static_cast<uint32_t>(p_.top_k);
    float weight = has_choice ? ptx::ld_shared<float>(score_at(id)) : 0.0f;
    if (p_.renormalize) weight = ptx::div_rn(weight, divisor_of(sum_of_choices(weight)));
    const auto choices = static_cast<uint32_t>(p_.top_k + p_.shared_experts);
    if (lane_ >= choices) return;
    if (!has_choice) id = p_.experts + lane_ - static_cast<uint32_t>(p_.top_k);
    const int64_t at = int64_t{token} * choices + lane_;
    ptx::st_global(p_.ids + at, static_cast<int32_t>(id));
    ptx::st_global(p_.weights + at, has_choice ? stored_weight(weight, p_.scale) : 1.0f);
  }

  BLOCKSCALE_DEVICE float sum_of_choices(float weight) const {
    float sum = 0;
    BLOCKSCALE_NO_UNROLL
    for (int32_t j = 0; j < p_.top_k; ++j) {
      sum = ptx::add_rn(sum, ptx::shfl_sync_idx(ptx::kFullMask, weight, static_cast<uint32_t>(j)));
    }
    return sum;
  }

  const RouteParams& p_;
  ptx::SharedAddress shared_;
  uint32_t lane_;
};

}  // namespace routing

BLOCKSCALE_DEVICE void moe_route_kernel(const RouteParams& p) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const uint32_t warp = device::warp_index();
  const routing::RouteWarp of_warp(p, device::shared_base() + warp * p.experts * 8);
  BLOCKSCALE_NO_UNROLL
  for (uint32_t token = ptx::ctaid_x() * kRouteWarps + warp; token < p.tokens;
       token += ptx::nctaid_x() * kRouteWarps) {
    of_warp.route(token);
  }
}

}  // namespace blockscale
