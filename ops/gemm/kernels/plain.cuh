// D = epilogue(A B^T) for every pair of operands, plainly. Start reading here: the fast kernels
// compute what this one does, for some pairs, on some chips.
//
// A block of threads computes a tile of D. It walks along K in tiles of `depth`, or its warps do,
// each by itself, where A has few rows: there is more of K on its way then. Of each tile of K a
// group, a block or a warp,
//   1. copies the codes of A's and B's rows to shared memory, as they lie (plain_load.cuh);
//   2. decodes them to bf16 or f16, which hold every element of 8 bits and fewer exactly; an f32 is
//      the sum of three bf16, an f16 beside bf16 of two (plain_load.cuh);
//   3. multiplies them by mma.sync, a segment of K at a time, in which each row of A and of B has
//      one scale: sum += products * A's scale * B's scale, in f32 (plain_multiply.cuh).
// Codes and scales of the tiles behind it are on their way meanwhile. At the end warps that divide
// K add up their sums, and alpha, tensor scales, C and bias are applied (store_pair). What is
// outside of K counts as zero; what is outside of D is not stored.
#pragma once

#include "device/conversion_loss.cuh"
#include "device/epilogue/elements.h"
#include "device/epilogue/tile_store.cuh"
#include "device/ptx/grid.h"
#include "ops/gemm/kernels/plain_load.cuh"
#include "ops/gemm/kernels/plain_multiply.cuh"
#include "ops/gemm/kernels/plain_scales.cuh"
#include "ops/gemm/kernels/tensor_scale.cuh"

namespace blockscale {
namespace plain {

/// What sums are multiplied with, one after the other: alpha, A's tensor scale, B's.
struct Factors {
  float alpha;
  TensorFactor tensor_scales[2];

  template <class Params>
  BLOCKSCALE_DEVICE Factors(const Params& p, const Place& place)
      : alpha(epilogue::alpha_of(p.epilogue, place.span.group)) {
    BLOCKSCALE_UNROLL
    for (int i = 0; i < 2; ++i) {
      tensor_scales[i] = {p.operands[i].tensor_scale, place.matrix_of(static_cast<uint32_t>(i))};
    }
  }

  BLOCKSCALE_DEVICE float operator()(float sum) const {
    sum = ptx::mul_rn(alpha, sum);
    BLOCKSCALE_UNROLL
    for (const TensorFactor& factor : tensor_scales) sum = factor(sum);
    return sum;
  }
};

/// Elements (row, column) and (row, column + 1) of a product, which has that row, as far as they
/// exist.
template <class Order>
BLOCKSCALE_DEVICE void store_pair(const PlainGemmParamsOf<Order>& p, const Factors& factors,
                                  const RowSpan& span, uint32_t row, uint32_t column, float first,
                                  float second) {
  const LinearEpilogue& e = p.epilogue;
  const auto map = p.order.row_map();
  const int64_t to = map.destination(row);
  if (to < 0 || to >= e.rows || column >= e.columns) return;
  float v[2];
  BLOCKSCALE_UNROLL
  for (uint32_t i = 0; i < 2; ++i) {
    float x = factors(i == 0 ? first : second);
    const bool exists = column + i < e.columns;
    if (e.bias.data != nullptr && exists) {
      x = ptx::add_rn(x, load_element(e.bias, span.group * e.bias.batch_stride + column + i));
    }
    if (e.gate.data != nullptr && exists) {
      x = ptx::mul_rn(x, load_element(e.gate, column + i));
    }
    if (e.beta != 0 && exists) {
      const int64_t at = span.matrix * e.c.batch_stride + row * e.c.row_stride + column + i;
      x = ptx::fma_rn(e.beta, load_element(e.c, at), x);
    }
    v[i] = x;
  }
  if (map.moves()) {
    const float weight = map.weight(row);
    BLOCKSCALE_UNROLL
    for (float& x : v) x = ptx::mul_rn(x, weight);
  }
  const epilogue::RowPart d =
      epilogue::row_part(e.d, e, span.matrix, static_cast<uint32_t>(to), column);
  if (map.adds() && e.d.dtype == Format::f32) {
    epilogue::add_element(d, 0, v[0]);
    epilogue::add_element(d, 1, v[1]);
    return;
  }
  const bool as_pair = p.store_pairs && d.left >= 2;
  if (e.d.dtype == Format::f32) {
    using Two = device::Vector<float, 2>;
    if (as_pair) {
      ptx::st_global(reinterpret_cast<Two*>(d.at), Two{{v[0], v[1]}});
    } else {
      epilogue::store_element(d, 0, v[0]);
      epilogue::store_element(d, 1, v[1]);
    }
    return;
  }
  const uint32_t pair = e.d.dtype == Format::f16 ? ptx::cvt_rn_f16x2_f32(v[1], v[0])
                                                 : ptx::cvt_rn_bf16x2_f32(v[1], v[0]);
  auto* const as_word = reinterpret_cast<uint32_t*>(d.at);
  if (map.adds()) {  // rows are whole pairs then
    if (e.d.dtype == Format::f16) {
      ptx::red_global_add_x2<Format::f16>(as_word, pair);
    } else {
      ptx::red_global_add_x2<Format::bf16>(as_word, pair);
    }
  } else if (as_pair) {
    ptx::st_global(as_word, pair);
  } else {
    epilogue::store_element(d, 0, static_cast<uint16_t>(pair));
    epilogue::store_element(d, 1, static_cast<uint16_t>(pair >> 16));
  }
}

/// Stores a tile: sums go through shared memory, where elements were, so that neighbouring threads
/// store neighbouring elements. Those of groups that divide K are added in their order.
template <PlainGemmConfig kConfig, class Order>
BLOCKSCALE_DEVICE void store_tile(const PlainGemmParamsOf<Order>& p, const Place& place,
                                  Multiplier<kConfig>& multiplier) {
  using Two = device::Vector<float, 2>;
  constexpr uint32_t kColumns = static_cast<uint32_t>(kConfig.columns);
  constexpr uint32_t kPairs = static_cast<uint32_t>(kConfig.rows) * kColumns / 2;
  const SharedAddress sums = device::shared_base();
  ptx::barrier_sync_all();
  multiplier.for_each_pair([&](uint32_t row, uint32_t column, float first, float second) {
    const uint32_t pair = (row * kColumns + column) / 2;
    ptx::st_shared(sums + (group_of_block<kConfig>() * kPairs + pair) * 8, Two{{first, second}});
  });
  ptx::barrier_sync_all();
  const Factors factors(p, place);
  BLOCKSCALE_NO_UNROLL
  for (uint32_t pair = ptx::tid_x(); pair < kPairs; pair += threads_of(kConfig)) {
    const uint32_t row = pair * 2 / kColumns, column = pair * 2 % kColumns;
    if (row >= place.a.count || column >= place.b.count) continue;
    Two sum = ptx::ld_shared<Two>(sums + pair * 8);
    BLOCKSCALE_UNROLL
    for (uint32_t k = 1; k < kConfig.warps_k; ++k) {
      const Two add = ptx::ld_shared<Two>(sums + (k * kPairs + pair) * 8);
      BLOCKSCALE_UNROLL
      for (int i = 0; i < 2; ++i) sum.at[i] = ptx::add_rn(sum.at[i], add.at[i]);
    }
    store_pair(p, factors, place.span, place.a.first + row, place.b.first + column, sum.at[0],
               sum.at[1]);
  }
}

template <PlainGemmConfig kConfig, class Order>
BLOCKSCALE_DEVICE void compute_tile(const PlainGemmParamsOf<Order>& p, const PlainMemory& memory,
                                    const Place& place) {
  constexpr uint32_t kGroups = static_cast<uint32_t>(kConfig.warps_k);
  constexpr uint32_t kBuffers = buffers_of(kConfig);
  constexpr uint32_t kDepth = static_cast<uint32_t>(kConfig.depth);
  const uint32_t group = group_of_block<kConfig>();
  const SharedAddress shared = device::shared_base() + group * memory.group_bytes;
  // A group's tiles of K are group, group + kGroups, .., from the first that the product has k in:
  // its own are counted from 0 on here.
  const uint32_t first_tile = kDividesK<Order> ? place.k.begin / kDepth : 0;
  const uint32_t k_tiles =
      kDividesK<Order> ? (place.k.end + kDepth - 1) / kDepth - first_tile : p.k_tiles;
  const uint32_t tiles = (k_tiles + kGroups - 1 - group) / kGroups;
  const auto tile_of_k = [&](uint32_t tile) { return first_tile + tile * kGroups + group; };
  // Stages are taken in turn: the next one to copy to, and the next one to decode.
  uint32_t copied = 0, decoded = 0;
  const auto take_stage = [&](uint32_t& stage) {
    const SharedAddress at = shared + (memory.stages + stage * memory.stage_bytes);
    stage = stage + 1 == p.stages ? 0 : stage + 1;
    return at;
  };
  const auto begin_copy = [&](uint32_t tile) {
    const SharedAddress stage = take_stage(copied);
    if (tile < tiles) {
      copy_codes<kConfig>(p.operands[0], rows_of_a(p, place), place.a.count, tile_of_k(tile),
                          stage);
      copy_codes<kConfig>(p.operands[1],
                          RowsInTurn(p.operands[1], place.matrix_of(1), place.b.first),
                          place.b.count, tile_of_k(tile), stage + memory.b_stage);
    }
    ptx::cp_async_commit_group();
  };
  const auto elements_of = [&](uint32_t tile, uint32_t operand) {
    return shared + (tile % kBuffers * memory.buffer_bytes +
                     (operand == 0 ? 0 : p.operands[0].parts * memory.a_part_bytes));
  };
  const auto scales_of = [&](uint32_t tile) {
    return shared + (memory.scales + tile % kBuffers * memory.scale_bytes);
  };
  Scales<kConfig, 0, Order> a_scales(p, place);
  Scales<kConfig, 1, Order> b_scales(p, place);
  const auto decode = [&](uint32_t tile) {
    const SharedAddress stage = take_stage(decoded);
    a_scales.store(tile_of_k(tile), scales_of(tile));
    b_scales.store(tile_of_k(tile), scales_of(tile));
    a_scales.load(tile_of_k(tile + 1));
    b_scales.load(tile_of_k(tile + 1));
    KRange k;  // of the tile's
    if constexpr (kDividesK<Order>) {
      const uint32_t first = tile_of_k(tile) * kDepth;
      k = {place.k.begin < first ? 0 : place.k.begin - first, place.k.end - first};
    }
    BLOCKSCALE_NO_UNROLL
    for (uint32_t i = 0; i < 2; ++i) {
      decode_tile<kConfig, kDividesK<Order>>(
          i == 0 ? p.operands[0].element : p.operands[1].element,
          {place.rows(i).count, stage + (i == 0 ? 0 : memory.b_stage), elements_of(tile, i),
           i == 0 ? memory.a_part_bytes : memory.b_part_bytes, k});
    }
  };
  Multiplier<kConfig> multiplier(place.a.count);
  const auto multiply = [&](uint32_t tile) {
    multiplier.multiply(p, memory, elements_of(tile, 0), elements_of(tile, 1), scales_of(tile));
  };

  if (thread_of_group<kConfig>() == 0) {
    ptx::accept_any_shared(shared, memory.stages);  // rows outside of the operands
  }
  BLOCKSCALE_NO_UNROLL
  for (uint32_t tile = 0; tile + 1 < p.stages; ++tile) begin_copy(tile);
  a_scales.load(tile_of_k(0));
  b_scales.load(tile_of_k(0));
  BLOCKSCALE_NO_UNROLL
  for (uint32_t tile = 0; tile < tiles + kBuffers - 1; ++tile) {
    // Codes of this tile are here, and what was decoded last is multiplied, or with two buffers
    // what was decoded before that.
    wait_copies<kConfig.stages - 2>(p.stages - 2);
    sync_group<kConfig>();
    begin_copy(tile + p.stages - 1);
    if (tile < tiles) decode(tile);
    if constexpr (kBuffers == 1) {
      sync_group<kConfig>();
      multiply(tile);
    } else {
      if (tile > 0) multiply(tile - 1);
    }
  }
  store_tile<kConfig>(p, place, multiplier);
}

}  // namespace plain

template <PlainGemmConfig kConfig, class Order = DenseOrder>
BLOCKSCALE_DEVICE void plain_gemm_kernel(const PlainGemmParamsOf<Order>& p) {
  using namespace plain;
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  if (p.loss != nullptr && !conversion_loss::take(p.loss)) return;
  const PlainMemory memory = memory_of(kConfig, p.operands, p.stages);
  BlockTiles<Order, static_cast<uint32_t>(kConfig.rows)> tiles(
      p.order, device::shared_base() + memory.total);
  tiles.begin();
  BLOCKSCALE_NO_UNROLL
  for (uint32_t i = ptx::ctaid_x(); i < tiles.count(); i += ptx::nctaid_x()) {
    compute_tile<kConfig>(p, memory, place_of<kConfig>(p, tiles.tile(i)));
    ptx::barrier_sync_all();  // sums have been read
  }
}

}  // namespace blockscale
