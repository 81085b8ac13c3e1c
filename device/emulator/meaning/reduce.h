// What atomics, redux.sync and reducing copies make of two elements: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/tensor_map.h"
#include "device/emulator/instructions.h"
#include "device/emulator/meaning/float32.h"
#include "device/emulator/meaning/packed.h"

namespace blockscale::emulator::meaning {

/// `old` combined with `value`, both integers; min and max compare them as T does.
template <class T>
T reduce(ReduceOp op, T old, T value) {
  switch (op) {
    case ReduceOp::kAdd: return static_cast<T>(uint64_t(old) + uint64_t(value));
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

/// f32 additions in L2 flush subnormals.
inline float atomic_add_f32(float old, float value) {
  return flush(add(flush(old), flush(value)));
}

/// Of a word, that is an f32 or a pair of f16 or bf16.
inline uint32_t atomic_add_word(Format dtype, uint32_t old, uint32_t value) {
  if (dtype == Format::f16) return add_rn_x2<Format::f16>(old, value);
  if (dtype == Format::bf16) return add_rn_x2<Format::bf16>(old, value);
  return bit_cast<uint32_t>(atomic_add_f32(bit_cast<float>(old), bit_cast<float>(value)));
}

/// Whether cp.reduce.async.bulk has `op` for elements of this type.
constexpr bool can_reduce(ReduceOp op, TensorMapElement element) {
  const bool bits = op == ReduceOp::kAnd || op == ReduceOp::kOr || op == ReduceOp::kXor;
  const bool order = op == ReduceOp::kMin || op == ReduceOp::kMax;
  const bool step = op == ReduceOp::kIncrement || op == ReduceOp::kDecrement;
  switch (element) {
    case TensorMapElement::u32: return op != ReduceOp::kExchange;
    case TensorMapElement::s32: return op == ReduceOp::kAdd || order || bits;
    case TensorMapElement::u64: return op != ReduceOp::kExchange && !step;
    case TensorMapElement::s64: return order;
    case TensorMapElement::f16:
    case TensorMapElement::bf16: return op == ReduceOp::kAdd || order;
    case TensorMapElement::f32: return op == ReduceOp::kAdd;
    default: return false;
  }
}

template <class T>
void reduce_integer(ReduceOp op, void* old, const void* value) {
  T a = 0, b = 0;
  std::memcpy(&a, old, sizeof(T));
  std::memcpy(&b, value, sizeof(T));
  a = reduce<T>(op, a, b);
  std::memcpy(old, &a, sizeof(T));
}

template <Format F>
void reduce_half(ReduceOp op, void* old, const void* value) {
  uint16_t a = 0, b = 0;
  std::memcpy(&a, old, sizeof(a));
  std::memcpy(&b, value, sizeof(b));
  const uint32_t result = op == ReduceOp::kAdd   ? add_rn_x2<F>(a, b)
                          : op == ReduceOp::kMin ? min_x2<F>(a, b)
                                                 : max_x2<F>(a, b);
  a = static_cast<uint16_t>(result);  // the lower half
  std::memcpy(old, &a, sizeof(a));
}

/// *old = *old op *value, of elements for which can_reduce holds.
inline void reduce_element(ReduceOp op, TensorMapElement element, void* old, const void* value) {
  switch (element) {
    case TensorMapElement::u32: return reduce_integer<uint32_t>(op, old, value);
    case TensorMapElement::s32: return reduce_integer<int32_t>(op, old, value);
    case TensorMapElement::u64: return reduce_integer<uint64_t>(op, old, value);
    case TensorMapElement::s64: return reduce_integer<int64_t>(op, old, value);
    case TensorMapElement::f16: return reduce_half<Format::f16>(op, old, value);
    case TensorMapElement::bf16: return reduce_half<Format::bf16>(op, old, value);
    default: break;
  }
  float a = 0, b = 0;
  std::memcpy(&a, old, sizeof(a));
  std::memcpy(&b, value, sizeof(b));
  a = atomic_add_f32(a, b);
  std::memcpy(old, &a, sizeof(a));
}

}  // namespace blockscale::emulator::meaning
