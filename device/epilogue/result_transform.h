// GELU, SiLU or SwiGLU of a product's numbers, in f32, before they are rounded.
#pragma once

#include "core/divisor.h"
#include "core/input_transform.h"
#include "core/math.h"
#include "device/kernel.h"
#include "device/math.h"

namespace blockscale {

/// As it is by default SiLU: none is what launches say beside it.
struct ResultTransform {
  bool is_gelu = false;     // else silu of gates, times their ups
  bool is_gated = false;    // else ups are 1
  bool is_clamped = false;  // if it is gated
  SwigluNumbers swiglu = {};
  math::GeluTail gelu = {};
  GateOrder gate_order = GateOrder::gate_first;
  Divisor gate_group;  // columns: as in gated_columns

  /// gated_columns of a column of the result, if it is gated.
  struct Columns {
    uint32_t gate, up;
  };
  BLOCKSCALE_DEVICE Columns columns_of(uint32_t column) const {
    const uint32_t group = gate_group.divisor;
    const uint32_t first = column + gate_group.quotient(column) * group;
    return gate_order == GateOrder::gate_first ? Columns{first, first + group}
                                               : Columns{first + group, first};
  }

  BLOCKSCALE_DEVICE float operator()(float gate, float up) const {
    using M = device::KernelMath;
    if (is_clamped) return math::clamped_swiglu<M>(gate, up, swiglu);
    return is_gelu ? math::gelu<M>(gate, gelu) : math::swiglu<M>(gate, up);
  }
};

}  // namespace blockscale
