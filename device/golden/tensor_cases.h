// Boxes of tensors, for comparing the emulator with a GPU: inside the tensor and over each of its
// edges, with every swizzle, rank, element and reduction.
#pragma once

#include "core/tensor_map.h"
#include "device/golden/tensor_programs.h"

namespace blockscale::golden {

struct TensorCase {
  const char* name;
  TensorMode mode = TensorMode::load;
  TensorMapElement element = TensorMapElement::u32;
  uint32_t rank = 2;
  uint32_t sizes[5] = {};
  uint32_t box[5] = {};
  int32_t coordinates[5] = {};
  TensorMapSwizzle swizzle = TensorMapSwizzle::none;
  uint32_t box_offset = 0;  // in shared memory, from a multiple of 1024
  uint32_t element_strides[5] = {1, 1, 1, 1, 1};
  TensorMapFill fill = TensorMapFill::zero;
};

constexpr uint32_t bytes_of(TensorMapElement element) {
  constexpr uint32_t kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
  return kBytes[static_cast<uint32_t>(element)];
}

/// Elements of the box along dimension i. Dimension 0 has no stride.
constexpr uint32_t extent_of(const TensorCase& c, uint32_t i) {
  return i == 0 ? c.box[0] : (c.box[i] + c.element_strides[i] - 1) / c.element_strides[i];
}

constexpr uint32_t box_bytes(const TensorCase& c) {
  uint32_t bytes = bytes_of(c.element);
  for (uint32_t i = 0; i < c.rank; ++i) bytes *= extent_of(c, i);
  return bytes;
}

/// The tensor is packed, but that strides are multiples of 16 bytes. It lies at `address`.
inline TensorMapDescription description_of(const TensorCase& c, uint64_t address) {
  TensorMapDescription d;
  d.address = address;
  d.rank = c.rank;
  d.element = c.element;
  d.swizzle = c.swizzle;
  d.fill = c.fill;
  uint64_t stride = bytes_of(c.element);
  for (uint32_t i = 0; i < c.rank; ++i) {
    d.sizes[i] = c.sizes[i];
    d.box[i] = c.box[i];
    d.element_strides[i] = c.element_strides[i];
    stride = (stride * c.sizes[i] + 15) / 16 * 16;
    if (i + 1 < c.rank) d.strides[i] = stride;
  }
  return d;
}

/// visit(TensorProgram<...>*) of the case's rank and mode. Reductions are of rank 2.
template <class Visit>
void visit_program(const TensorCase& c, const Visit& visit) {
  const auto moved = [&]<TensorMode kMode>() {
    switch (c.rank) {
      case 1: return visit(static_cast<TensorProgram<1, kMode>*>(nullptr));
      case 2: return visit(static_cast<TensorProgram<2, kMode>*>(nullptr));
      case 3: return visit(static_cast<TensorProgram<3, kMode>*>(nullptr));
      case 4: return visit(static_cast<TensorProgram<4, kMode>*>(nullptr));
      default: return visit(static_cast<TensorProgram<5, kMode>*>(nullptr));
    }
  };
  switch (c.mode) {
    case TensorMode::multicast: return moved.template operator()<TensorMode::multicast>();
    case TensorMode::multicast_once: return moved.template operator()<TensorMode::multicast_once>();
    case TensorMode::load: return moved.template operator()<TensorMode::load>();
    case TensorMode::load_once: return moved.template operator()<TensorMode::load_once>();
    case TensorMode::store: return moved.template operator()<TensorMode::store>();
    case TensorMode::add: return visit(static_cast<TensorProgram<2, TensorMode::add>*>(nullptr));
    case TensorMode::min: return visit(static_cast<TensorProgram<2, TensorMode::min>*>(nullptr));
    case TensorMode::max: return visit(static_cast<TensorProgram<2, TensorMode::max>*>(nullptr));
    case TensorMode::inc: return visit(static_cast<TensorProgram<2, TensorMode::inc>*>(nullptr));
    case TensorMode::dec: return visit(static_cast<TensorProgram<2, TensorMode::dec>*>(nullptr));
    case TensorMode::bit_and:
      return visit(static_cast<TensorProgram<2, TensorMode::bit_and>*>(nullptr));
    case TensorMode::bit_or:
      return visit(static_cast<TensorProgram<2, TensorMode::bit_or>*>(nullptr));
    case TensorMode::bit_xor:
      return visit(static_cast<TensorProgram<2, TensorMode::bit_xor>*>(nullptr));
  }
}

// clang-format off
using enum TensorMode;
using enum TensorMapElement;
inline constexpr auto k32 = TensorMapSwizzle::bytes_32, k64 = TensorMapSwizzle::bytes_64,
                      k128 = TensorMapSwizzle::bytes_128, kNone = TensorMapSwizzle::none;
inline constexpr TensorCase kTensorCases[] = {
    // One dimension: inside, over the end, before the start, outside.
    {"load_1d_inside", load, u8, 1, {200}, {64}, {16}},
    {"load_1d_end", load, u8, 1, {200}, {64}, {176}},
    {"load_1d_start", load, u16, 1, {100}, {64}, {-24}},
    {"load_1d_outside", load, u32, 1, {100}, {64}, {100}},
    {"load_1d_far_outside", load, u32, 1, {100}, {64}, {-2000000000}},
    // Each element.
    {"load_2d_u8", load, u8, 2, {80, 9}, {48, 8}, {16, 2}},
    {"load_2d_u16", load, u16, 2, {40, 9}, {24, 8}, {8, 2}},
    {"load_2d_s32", load, s32, 2, {40, 9}, {12, 8}, {-4, -2}},
    {"load_2d_u64", load, u64, 2, {20, 9}, {6, 8}, {16, 4}},
    {"load_2d_s64", load, s64, 2, {20, 9}, {6, 8}, {-2, 4}},
    {"load_2d_f16", load, f16, 2, {40, 9}, {24, 8}, {32, 2}},
    {"load_2d_bf16", load, bf16, 2, {40, 9}, {24, 8}, {8, 7}},
    {"load_2d_f32", load, f32, 2, {40, 9}, {12, 8}, {32, -1}},
    {"load_2d_f64", load, f64, 2, {20, 9}, {6, 8}, {4, 3}},
    // Edges within a chunk of 16 bytes.
    {"load_2d_u8_ragged", load, u8, 2, {77, 9}, {48, 8}, {48, 2}},
    {"load_2d_f16_ragged", load, f16, 2, {37, 9}, {24, 8}, {24, 2}},
    {"load_2d_u32_ragged", load, u32, 2, {39, 9}, {12, 8}, {32, 2}},
    // NaN outside.
    {"load_2d_f16_nan", load, f16, 2, {37, 9}, {24, 8}, {32, 4}, kNone, 0, {1, 1}, TensorMapFill::nan},
    {"load_2d_bf16_nan", load, bf16, 2, {40, 9}, {24, 8}, {-8, 4}, kNone, 0, {1, 1}, TensorMapFill::nan},
    {"load_2d_f32_nan", load, f32, 2, {38, 9}, {12, 8}, {32, -1}, kNone, 0, {1, 1}, TensorMapFill::nan},
    {"load_2d_f64_nan", load, f64, 2, {19, 9}, {6, 8}, {16, 3}, kNone, 0, {1, 1}, TensorMapFill::nan},
    // Swizzles: rows of the whole span; from each place in the pattern; over the edges; short rows.
    {"load_swizzle_32", load, u32, 2, {40, 40}, {8, 32}, {4, 2}, k32},
    {"load_swizzle_64", load, u32, 2, {40, 40}, {16, 32}, {4, 2}, k64},
    {"load_swizzle_128", load, u32, 2, {40, 40}, {32, 24}, {4, 2}, k128},
    {"load_swizzle_32_at_128", load, u32, 2, {40, 40}, {8, 32}, {4, 2}, k32, 128},
    {"load_swizzle_64_at_256", load, u32, 2, {40, 40}, {16, 32}, {4, 2}, k64, 256},
    {"load_swizzle_64_at_384", load, u32, 2, {40, 40}, {16, 32}, {4, 2}, k64, 384},
    {"load_swizzle_128_at_128", load, u32, 2, {40, 40}, {32, 16}, {4, 2}, k128, 128},
    {"load_swizzle_128_at_640", load, u32, 2, {40, 40}, {32, 16}, {4, 2}, k128, 640},
    {"load_swizzle_128_edges", load, f16, 2, {67, 20}, {64, 16}, {-16, -3}, k128},
    {"load_swizzle_128_far_edges", load, u8, 2, {139, 20}, {128, 16}, {48, 9}, k128},
    {"load_swizzle_64_edges", load, bf16, 2, {69, 20}, {32, 16}, {48, 11}, k64},
    {"load_swizzle_32_edges", load, u16, 2, {71, 20}, {16, 16}, {64, -5}, k32},
    {"load_swizzle_128_row_of_64", load, u32, 2, {40, 40}, {16, 16}, {4, 2}, k128},
    {"load_swizzle_128_row_of_32", load, u32, 2, {40, 40}, {8, 32}, {4, 2}, k128},
    {"load_swizzle_128_row_of_16", load, u32, 2, {40, 40}, {4, 32}, {4, 2}, k128},
    {"load_swizzle_128_row_of_48", load, u32, 2, {40, 40}, {12, 16}, {4, 2}, k128},
    {"load_swizzle_64_row_of_32", load, u32, 2, {40, 40}, {8, 16}, {4, 2}, k64},
    {"load_swizzle_64_row_of_16", load, u32, 2, {40, 40}, {4, 32}, {4, 2}, k64},
    {"load_swizzle_32_row_of_16", load, u32, 2, {40, 40}, {4, 32}, {4, 2}, k32},
    {"load_swizzle_128_one_short_row", load, u32, 2, {40, 40}, {16, 1}, {4, 2}, k128},
    {"load_swizzle_128_nan", load, f16, 2, {67, 20}, {64, 16}, {32, 9}, k128, 0, {1, 1}, TensorMapFill::nan},
    // More dimensions.
    {"load_3d", load, u32, 3, {20, 6, 7}, {8, 4, 5}, {4, 1, 1}},
    {"load_3d_edges", load, u32, 3, {20, 6, 7}, {8, 4, 5}, {16, -1, 4}},
    {"load_3d_swizzle_128", load, u16, 3, {68, 6, 7}, {64, 2, 5}, {8, 5, -2}, k128},
    {"load_4d", load, u32, 4, {12, 5, 4, 3}, {8, 3, 3, 2}, {4, 1, 1, 1}},
    {"load_4d_edges", load, u32, 4, {12, 5, 4, 3}, {8, 3, 3, 2}, {-4, 3, 2, 2}},
    {"load_5d", load, u8, 5, {32, 5, 4, 3, 3}, {16, 3, 2, 2, 2}, {16, 1, 1, 1, 1}},
    {"load_5d_edges", load, u8, 5, {41, 5, 4, 3, 3}, {16, 3, 2, 2, 2}, {32, -1, 3, 2, 2}},
    {"load_5d_swizzle_32", load, u8, 5, {48, 5, 4, 3, 3}, {32, 3, 2, 2, 2}, {32, -1, 3, 2, 2}, k32},
    // Strides between elements; dimension 0's is without effect.
    {"load_stride_2_rows", load, u32, 2, {40, 30}, {12, 16}, {4, 3}, kNone, 0, {1, 2}},
    {"load_stride_3_rows", load, u32, 2, {40, 30}, {12, 16}, {4, 21}, kNone, 0, {1, 3}},
    {"load_stride_8_of_3d", load, u16, 3, {40, 6, 30}, {16, 3, 25}, {8, 1, 2}, kNone, 0, {1, 1, 8}},
    {"load_stride_2_columns", load, u32, 2, {40, 30}, {16, 8}, {4, 3}, kNone, 0, {2, 1}},
    {"load_stride_2_swizzle_128", load, u32, 2, {40, 40}, {32, 32}, {4, 2}, k128, 0, {1, 2}},
    // With an L2 policy.
    {"load_once_1d_end", load_once, u8, 1, {200}, {64}, {176}},
    {"load_once_2d_edges", load_once, f32, 2, {40, 9}, {12, 8}, {32, -1}},
    {"load_once_swizzle_128", load_once, u32, 2, {40, 40}, {32, 24}, {4, 2}, k128},
    {"load_once_3d_edges", load_once, u32, 3, {20, 6, 7}, {8, 4, 5}, {16, -1, 4}},
    {"load_once_4d_edges", load_once, u32, 4, {12, 5, 4, 3}, {8, 3, 3, 2}, {-4, 3, 2, 2}},
    {"load_once_5d_edges", load_once, u8, 5, {41, 5, 4, 3, 3}, {16, 3, 2, 2, 2}, {32, -1, 3, 2, 2}},
    // To two blocks of a cluster.
    {"multicast_1d_end", multicast, u8, 1, {200}, {64}, {176}},
    {"multicast_2d_edges", multicast, f32, 2, {40, 9}, {12, 8}, {32, -1}},
    {"multicast_swizzle_128", multicast, u32, 2, {40, 40}, {32, 24}, {4, 2}, k128},
    {"multicast_3d_edges", multicast, u32, 3, {20, 6, 7}, {8, 4, 5}, {16, -1, 4}},
    {"multicast_4d_edges", multicast, u32, 4, {12, 5, 4, 3}, {8, 3, 3, 2}, {-4, 3, 2, 2}},
    {"multicast_5d_edges", multicast, u8, 5, {41, 5, 4, 3, 3}, {16, 3, 2, 2, 2}, {32, -1, 3, 2, 2}},
    {"multicast_once_1d_end", multicast_once, u8, 1, {200}, {64}, {176}},
    {"multicast_once_swizzle_128", multicast_once, u32, 2, {40, 40}, {32, 24}, {4, 2}, k128},
    {"multicast_once_3d_edges", multicast_once, u32, 3, {20, 6, 7}, {8, 4, 5}, {16, -1, 4}},
    {"multicast_once_4d_edges", multicast_once, u32, 4, {12, 5, 4, 3}, {8, 3, 3, 2}, {-4, 3, 2, 2}},
    {"multicast_once_5d_edges", multicast_once, u8, 5, {41, 5, 4, 3, 3}, {16, 3, 2, 2, 2}, {32, -1, 3, 2, 2}},
    // Stores.
    {"store_1d", store, u8, 1, {200}, {64}, {16}},
    {"store_1d_end", store, u8, 1, {200}, {64}, {176}},
    {"store_1d_start", store, u32, 1, {100}, {64}, {-12}},
    {"store_1d_start_u16", store, u16, 1, {100}, {64}, {-24}},
    {"store_1d_outside", store, u32, 1, {100}, {64}, {100}},
    {"store_2d", store, u32, 2, {40, 20}, {12, 8}, {4, 2}},
    {"store_2d_edges", store, f16, 2, {37, 20}, {24, 8}, {-8, 15}},
    {"store_2d_far_edges", store, f16, 2, {37, 20}, {24, 8}, {24, -3}},
    {"store_2d_u8_ragged", store, u8, 2, {77, 9}, {48, 8}, {48, 2}},
    {"store_swizzle_32", store, u32, 2, {20, 40}, {8, 32}, {4, 2}, k32, 128},
    {"store_swizzle_64", store, u32, 2, {20, 40}, {16, 32}, {4, 2}, k64, 256},
    {"store_swizzle_128", store, u32, 2, {36, 24}, {32, 16}, {4, 2}, k128, 384},
    {"store_swizzle_128_edges", store, u8, 2, {139, 20}, {128, 16}, {-16, 9}, k128},
    {"store_swizzle_128_row_of_32", store, u32, 2, {20, 40}, {8, 32}, {4, 2}, k128},
    {"store_3d_edges", store, u32, 3, {20, 6, 7}, {8, 4, 5}, {16, -1, 4}},
    {"store_4d_edges", store, u32, 4, {12, 5, 4, 3}, {8, 3, 3, 2}, {-4, 3, 2, 2}},
    {"store_5d_edges", store, u8, 5, {32, 5, 4, 3, 3}, {16, 3, 2, 2, 2}, {16, -1, 3, 2, 2}},
    {"store_2d_corner", store, f16, 2, {37, 20}, {24, 8}, {24, 15}},
    {"store_swizzle_128_corner", store, u8, 2, {139, 20}, {128, 16}, {32, 9}, k128},
    {"store_3d_corner", store, u32, 3, {20, 6, 7}, {8, 4, 5}, {16, 4, 4}},
    {"store_4d_corner", store, u32, 4, {11, 5, 4, 3}, {8, 3, 3, 2}, {8, 3, 2, 2}},
    {"store_5d_corner", store, u8, 5, {25, 5, 4, 3, 3}, {16, 3, 2, 2, 2}, {16, 3, 3, 2, 2}},
    {"store_stride_2_rows", store, u32, 2, {24, 30}, {12, 16}, {4, 3}, kNone, 0, {1, 2}},
    // Reductions.
    {"add_u32", add, u32, 2, {24, 30}, {12, 16}, {4, 20}},
    {"add_s32", add, s32, 2, {24, 30}, {12, 16}, {4, 3}},
    {"add_u64", add, u64, 2, {14, 30}, {6, 16}, {4, 3}},
    {"add_f16", add, f16, 2, {48, 30}, {24, 16}, {8, 3}},
    {"add_bf16", add, bf16, 2, {48, 30}, {24, 16}, {8, 3}},
    {"add_f32", add, f32, 2, {24, 30}, {12, 16}, {4, 3}},
    {"add_f16_swizzle_128", add, f16, 2, {72, 20}, {64, 16}, {-16, -3}, k128},
    {"min_u32", min, u32, 2, {24, 30}, {12, 16}, {4, 3}},
    {"min_s32", min, s32, 2, {24, 30}, {12, 16}, {4, 3}},
    {"min_u64", min, u64, 2, {14, 30}, {6, 16}, {4, 3}},
    {"min_s64", min, s64, 2, {14, 30}, {6, 16}, {4, 3}},
    {"min_f16", min, f16, 2, {48, 30}, {24, 16}, {8, 3}},
    {"min_bf16", min, bf16, 2, {48, 30}, {24, 16}, {8, 3}},
    {"max_u32", max, u32, 2, {24, 30}, {12, 16}, {4, 3}},
    {"max_s32", max, s32, 2, {24, 30}, {12, 16}, {4, 3}},
    {"max_u64", max, u64, 2, {14, 30}, {6, 16}, {4, 3}},
    {"max_s64", max, s64, 2, {14, 30}, {6, 16}, {4, 3}},
    {"max_f16", max, f16, 2, {48, 30}, {24, 16}, {8, 3}},
    {"max_bf16", max, bf16, 2, {48, 30}, {24, 16}, {8, 3}},
    {"inc_u32", inc, u32, 2, {24, 30}, {12, 16}, {4, 3}},
    {"dec_u32", dec, u32, 2, {24, 30}, {12, 16}, {4, 3}},
    {"and_u32", bit_and, u32, 2, {24, 30}, {12, 16}, {4, 3}},
    {"or_u32", bit_or, u32, 2, {24, 30}, {12, 16}, {4, 3}},
    {"xor_u32", bit_xor, u32, 2, {24, 30}, {12, 16}, {4, 3}},
    {"xor_s32", bit_xor, s32, 2, {24, 30}, {12, 16}, {4, 3}},
    {"and_u64", bit_and, u64, 2, {14, 30}, {6, 16}, {4, 3}},
    {"xor_u64", bit_xor, u64, 2, {14, 30}, {6, 16}, {4, 3}},
    {"add_f16_swizzle_128_corner", add, f16, 2, {67, 20}, {64, 16}, {16, 9}, k128},
    {"add_u32_ragged", add, u32, 2, {23, 30}, {12, 16}, {12, 20}},
    {"max_f16_ragged", max, f16, 2, {45, 30}, {24, 16}, {24, 3}},
    // What the GPU stops at, besides writes at negative coordinates above: coordinate 0 is no
    // multiple of 16 bytes, s64 has no bits.
    {"load_misaligned_u8", load, u8, 2, {80, 9}, {48, 8}, {5, 2}},
    {"load_misaligned_swizzle_128", load, u32, 2, {40, 40}, {32, 24}, {3, 2}, k128},
    {"store_misaligned_f16", store, f16, 2, {40, 20}, {24, 8}, {-3, 15}},
    {"xor_s64", bit_xor, s64, 2, {14, 30}, {6, 16}, {4, 3}},
};
// clang-format on

}  // namespace blockscale::golden
