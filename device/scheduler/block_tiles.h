// The tiles of a launch, as a block asks for them, whatever their order.
#pragma once

#include "device/kernel.h"
#include "device/ptx/shared_memory.h"
#include "device/scheduler/tile.h"

namespace blockscale {

/// Of kRows rows. `shared` is the block's, as many bytes as the order asks for.
template <class Order, uint32_t kRows>
class BlockTiles {
 public:
  BLOCKSCALE_DEVICE BlockTiles(const Order& order, ptx::SharedAddress shared)
      : order_(order), shared_(shared) {}

  /// By all threads of the block, once what kernels before this one wrote may be read; before that
  /// only tiles that are known at launch may be asked for.
  BLOCKSCALE_DEVICE void begin() {
    if constexpr (!Order::kIsKnownAtLaunch) {
      order_.template begin<kRows>(shared_);
      count_ = order_.template count<kRows>(shared_);
    }
  }
  BLOCKSCALE_DEVICE uint32_t count() const {
    if constexpr (Order::kIsKnownAtLaunch) {
      return order_.tiles;
    } else {
      return count_;
    }
  }
  /// By whole warps.
  BLOCKSCALE_DEVICE Tile tile(uint32_t index) const {
    if constexpr (Order::kIsKnownAtLaunch) {
      return order_.template tile<kRows>(index);
    } else {
      return order_.template tile<kRows>(shared_, index);
    }
  }

 private:
  const Order& order_;
  ptx::SharedAddress shared_;
  uint32_t count_ = 0;
};

}  // namespace blockscale
