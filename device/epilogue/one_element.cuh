// What an epilogue does behind alpha, for one element of D at a time: of kernels for few rows.
#pragma once

#include "device/epilogue/linear.h"
#include "device/epilogue/tile_store.cuh"
#include "device/kernel.h"
#include "device/ptx/arithmetic.h"
#include "device/ptx/convert.h"

namespace blockscale::epilogue {

/// Where an element of D is, but for its column.
struct RowPlace {
  uint32_t matrix;  // of A and D
  uint32_t group;   // matrix of B
  uint32_t row;
};

/// gate * (v + bias) + beta * C. `v` has alpha and all scales.
BLOCKSCALE_DEVICE float combine_one(const LinearEpilogue& e, const RowPlace& at, uint32_t column,
                                    float v) {
  if (e.bias.data != nullptr) {
    const RowPart bias = row_part(e.bias, e, at.group, 0, column);
    v = ptx::add_rn(v, load_element(bias, e.bias.dtype, 0));
  }
  if (e.gate.data != nullptr) {
    const RowPart gate = row_part(e.gate, e, 0, 0, column);
    v = ptx::mul_rn(v, load_element(gate, e.gate.dtype, 0));
  }
  if (e.beta != 0) {
    const RowPart c = row_part(e.c, e, at.matrix, at.row, column);
    v = ptx::fma_rn(e.beta, load_element(c, e.c.dtype, 0), v);
  }
  return v;
}

/// D = v, rounded to D's type.
BLOCKSCALE_DEVICE void store_one(const LinearEpilogue& e, const RowPlace& at, uint32_t column,
                                 float v) {
  const RowPart d = row_part(e.d, e, at.matrix, at.row, column);
  if (e.d.dtype == Format::f32) {
    store_element(d, 0, v);
  } else {
    const uint32_t pair =
        e.d.dtype == Format::f16 ? ptx::cvt_rn_f16x2_f32(0, v) : ptx::cvt_rn_bf16x2_f32(0, v);
    store_element(d, 0, static_cast<uint16_t>(pair));
  }
}

}  // namespace blockscale::epilogue
