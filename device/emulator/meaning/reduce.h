// What atomics, redux.sync and reducing copies make of two elements: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/emulator/instructions.h"
#include "device/emulator/meaning/float32.h"

namespace blockscale::emulator::meaning {

/// `old` combined with `value`: an unsigned integer T, or a signed one for min and max.
template <class T>
T reduce(ReduceOp op, T old, T value) {
  switch (op) {
    case ReduceOp::kAdd: return static_cast<T>(old + value);
    case ReduceOp::kMin: return std::min(old, value);
    case ReduceOp::kMax: return std::max(old, value);
    case ReduceOp::kAnd: return static_cast<T>(old & value);
    case ReduceOp::kOr: return static_cast<T>(old | value);
    case ReduceOp::kXor: return static_cast<T>(old ^ value);
    case ReduceOp::kExchange: return value;
    case ReduceOp::kIncrement: return static_cast<T>(old >= value ? T{0} : old + 1);
    case ReduceOp::kDecrement: return static_cast<T>(old == 0 || old > value ? value : old - 1);
  }
  return old;
}

/// Subnormals become zeros of their sign: what f32 additions in L2 do.
inline float flush(float x) {
  const uint32_t bits = bit_cast<uint32_t>(x);
  return (bits & 0x7F800000u) == 0 ? bit_cast<float>(bits & 0x80000000u) : x;
}

inline float atomic_add_f32(float old, float value) {
  return flush(add(flush(old), flush(value)));
}

}  // namespace blockscale::emulator::meaning
