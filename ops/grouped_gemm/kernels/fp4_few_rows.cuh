// D = epilogue(A B^T) of groups of few rows of A, in bf16, f16 or FP8, and B in nvfp4 or mxfp4 as
// it lies: the dense kernel of few rows (ops/gemm/kernels/fp4_few_rows.cuh, to read first),
// whose turns are tiles of groups. B is read once for as many as 8 rows of a group.
//
// A block has tiles that follow one another, mostly of the same rows, so that it brings rows of A
// to shared memory once or twice. The next tile's weights are on their way while this one's sums
// are added up, whichever group it is of.
#pragma once

#include "device/scheduler/block_tiles.h"
#include "device/scheduler/grouped_order.h"
#include "ops/gemm/kernels/fp4_few_rows.cuh"
#include "ops/grouped_gemm/kernels/config.h"

namespace blockscale {

struct Fp4FewRowsParams : Fp4GemmParams {
  SourceRows source;
  /// Of tiles of kFp4GroupedRows rows, block_tiles of B wide, in bands of one tile row; no row
  /// moves. What it asks for lies behind Fp4GemmMemory.
  EntryOrder order;
};

namespace fp4_few_rows {

using GroupedTiles = BlockTiles<EntryOrder, kFp4GroupedRows>;

/// The turns of a block, or of a cluster: an equal part of all tiles.
class GroupedTurns {
 public:
  BLOCKSCALE_DEVICE GroupedTurns(const Fp4FewRowsParams& p, const GroupedTiles& tiles)
      : p_(p), tiles_(tiles) {
    const uint32_t blocks = ptx::nctaid_y(), block = ptx::ctaid_y();
    const uint32_t each = tiles.count() / blocks, more = tiles.count() - each * blocks;
    index_ = block * each + (block < more ? block : more);
    end_ = index_ + each + (block < more ? 1 : 0);
    find();
  }

  BLOCKSCALE_DEVICE bool has() const { return index_ < end_; }
  /// By whole warps.
  BLOCKSCALE_DEVICE void next() {
    ++index_;
    if (++tile_.n == p_.order.tiles_n || !has()) find();
  }
  BLOCKSCALE_DEVICE uint32_t tile() const { return tile_.n * p_.block_tiles; }
  BLOCKSCALE_DEVICE uint32_t group() const { return tile_.group; }
  BLOCKSCALE_DEVICE TurnRows rows() const {
    const uint32_t left = tile_.end_row - tile_.first_row;
    return {p_.order.matrix_of(tile_), tile_.group, tile_.first_row,
            left < kFp4GroupedRows ? left : kFp4GroupedRows, p_.source};
  }
  /// Whether the turn before had other rows, unless this is the first one.
  BLOCKSCALE_DEVICE bool begins_rows() const { return tile_.n == 0; }

 private:
  BLOCKSCALE_DEVICE void find() {
    if (has()) {
      tile_ = tiles_.tile(index_);
      tile_.group = p_.order.b_of(tile_);
    } else {
      tile_.n = p_.order.tiles_n;
    }
  }

  const Fp4FewRowsParams& p_;
  const GroupedTiles& tiles_;
  uint32_t index_, end_;
  Tile tile_ = {};
};

struct GroupedRows {
  template <Fp4GemmConfig kConfig>
  BLOCKSCALE_DEVICE static void run(const Fp4FewRowsParams& p);
};

template <Fp4GemmConfig kConfig>
BLOCKSCALE_DEVICE void GroupedRows::run(const Fp4FewRowsParams& p) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const Part part(p);
  const Fp4GemmMemory memory =
      memory_of_fp4(kConfig, kFp4GroupedRows, p.block_chunks, p.block_tiles * p.warps_k);
  GroupedTiles tiles(p.order, device::shared_base() + memory.total);
  tiles.begin();
  GroupedTurns turns(p, tiles);
  if (!turns.has()) return;
  Weights<kConfig, GroupedTurns> weights(p, part, turns);
  bring_rows<kConfig>(p, memory, turns.rows());
  ptx::barrier_sync_all();
  uint32_t buffer = 0;  // of sums, as the dense kernel's
  for (;;) {
    const TurnRows rows = turns.rows();
    const fp4_few_rows::Multiplier<kConfig> multiplier(memory, rows.count);
    Sums<kConfig> sums = {};
    add_chunks(p, part, multiplier, weights, sums);
    const ptx::SharedAddress to = device::shared_base() + (memory.sums + buffer);
    store_sums<kConfig>(sums, rows.count, memory, to);
    sync_parts(p);
    const uint32_t tile = turns.tile();
    turns.next();
    const bool brings = turns.has() && turns.begins_rows();
    if (brings) bring_rows<kConfig>(p, memory, turns.rows());
    add_up(p, memory, rows, tile, to);
    if (!turns.has()) break;
    if (brings) ptx::barrier_sync_all();
    buffer = memory.sum_bytes - buffer;
  }
  if (p.blocks_k > 1) sync_parts(p);  // others read this block's sums
}

}  // namespace fp4_few_rows

template <Fp4GemmConfig kConfig>
BLOCKSCALE_DEVICE void fp4_few_rows_grouped_kernel(const Fp4FewRowsParams& p) {
  fp4_few_rows::run_of_formats<kConfig, fp4_few_rows::GroupedRows>(p);
}

}  // namespace blockscale
