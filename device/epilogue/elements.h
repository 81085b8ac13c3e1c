// One element of a matrix of f32, f16 or bf16, as f32.
#pragma once

#include "device/epilogue/linear.h"
#include "device/kernel.h"
#include "device/ptx/convert.h"
#include "device/ptx/global_memory.h"

namespace blockscale {

/// Of two bytes.
BLOCKSCALE_DEVICE float decode_element(Format dtype, uint16_t code) {
  return dtype == Format::f16 ? ptx::cvt_f32_f16(code) : ptx::cvt_f32_bf16(code);
}

/// `at` counts elements from the matrix's first.
BLOCKSCALE_DEVICE float load_element(const EpilogueMatrix& x, int64_t at) {
  if (x.dtype == Format::f32) return ptx::ld_global(reinterpret_cast<const float*>(x.data) + at);
  return decode_element(x.dtype, ptx::ld_global(reinterpret_cast<const uint16_t*>(x.data) + at));
}

BLOCKSCALE_DEVICE void store_element(const EpilogueMatrix& x, int64_t at, float value) {
  if (x.dtype == Format::f32) {
    ptx::st_global(reinterpret_cast<float*>(x.data) + at, value);
    return;
  }
  const uint16_t rounded =
      x.dtype == Format::f16 ? ptx::cvt_rn_f16_f32(value) : ptx::cvt_rn_bf16_f32(value);
  ptx::st_global(reinterpret_cast<uint16_t*>(x.data) + at, rounded);
}

}  // namespace blockscale
