// cp.async.bulk.tensor and its reducing and prefetching forms.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/tensor_map_rules.h"
#include "device/emulator/copies.h"
#include "device/emulator/meaning/reduce.h"
#include "device/emulator/meaning/swizzle.h"
#include "device/emulator/meaning/tensor_box.h"
#include "device/emulator/tensor_map.h"

namespace blockscale::emulator {
namespace {

using Coordinates = std::array<int32_t, kMaxTensorMapRank>;

/// A box of a tensor, as an instruction names it.
struct Box {
  TensorMapDescription map;
  Coordinates coordinates = {};
  bool is_gathered = false;  // its four rows, from where coordinates 1 to 4 say

  std::byte* global(uint64_t offset) const {
    return reinterpret_cast<std::byte*>(map.address) + offset;
  }
  template <class Visit>
  void for_each_run(const Visit& visit) const {
    const auto row_at = [this](uint32_t r) {
      return is_gathered ? meaning::gathered_row(map, coordinates.data(), r)
                         : meaning::row_of_box(map, coordinates.data(), r);
    };
    meaning::for_each_run(map, coordinates[0], row_at, visit);
  }
};

/// Decodes the map; fails where it is none or has another rank.
Box use_map(Machine& m, const TensorMap* map, const int32_t* coordinates, int rank,
            const char* name, SourceLocation at) {
  if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0) {
    m.fail(FindingKind::misaligned, {at},
           by_whom(m, name, at) + ": the tensor map is to lie at a multiple of 64");
  }
  const auto description = decode_tensor_map(*map);
  if (!description) {
    m.fail(FindingKind::invalid_operand, {at},
           by_whom(m, name, at) + ": the 128 bytes are no tensor map");
  }
  if (meaning::unit_of(*description).elements != 1) m.require(Feature::padded_elements, name, at);
  if (rank != 0 && description->rank != static_cast<uint32_t>(rank)) {
    m.fail(FindingKind::invalid_operand, {at},
           by_whom(m, name, at) + " takes a tensor map of rank " + std::to_string(rank) +
               ", not one of rank " + std::to_string(description->rank));
  }
  Box box = {*description, {}};
  std::copy_n(coordinates, rank, box.coordinates.begin());
  return box;
}

/// A copy starts at a multiple of 16 bytes of a row, or of 128 elements with gaps; one that writes,
/// at no negative coordinate. An H200 stops at others with "illegal instruction".
bool check_start(Machine& m, const Box& box, bool writes, const char* name, SourceLocation at) {
  const auto& c = box.coordinates;
  if (const auto negative = std::find_if(c.begin(), c.end(), [](int32_t x) { return x < 0; });
      writes && negative != c.end()) {
    m.report(FindingKind::invalid_operand, {at},
             by_whom(m, name, at) + ": coordinate " + std::to_string(negative - c.begin()) +
                 " is " + std::to_string(*negative) +
                 "; a box that is written starts at 0 or above");
    return false;
  }
  const meaning::TensorUnit unit = meaning::unit_of(box.map);
  if (unit.elements != 1) {
    const uint32_t least = meaning::has_gaps(box.map) ? row_alignment(box.map.element) : 32;
    return check_multiple(m, static_cast<uint64_t>(int64_t{box.coordinates[0]}), least,
                          "coordinate 0", name, at);
  }
  const int64_t bytes = int64_t{box.coordinates[0]} * unit.bytes;
  return check_multiple(m, static_cast<uint64_t>(bytes), 16, "coordinate 0, in bytes,", name, at);
}

/// Checks the box's part of global memory, a run at a time: it lies in the buffer that the map's
/// address is in.
bool access_tensor(Machine& m, const Box& box, const Accessor& accessor, const char* name) {
  const uint32_t size = meaning::unit_of(box.map).bytes;
  bool valid = true;
  box.for_each_run([&](const meaning::BoxRun& run) {
    if (!run.inside || !valid) return;
    valid = m.access_global(box.global(run.global_offset), uint64_t{run.units} * size, accessor,
                            name, box.global(0));
  });
  return valid;
}

/// Bytes of a run that lie side by side in shared memory too: a swizzle exchanges chunks of 16.
struct Piece {
  uint32_t offset;  // in the block's shared memory
  bool inside;      // the tensor
  std::byte* global;
  uint32_t bytes;
  uint32_t gap;  // bytes of shared memory behind them that belong to nothing
};

/// visit(piece) for all of the box.
template <class Visit>
void for_each_piece(const Box& box, uint32_t address, const Visit& visit) {
  const meaning::TensorUnit unit = meaning::unit_of(box.map);
  const uint32_t gap = unit.shared_bytes - unit.bytes;
  box.for_each_run([&](const meaning::BoxRun& run) {
    const uint32_t bytes = run.units * unit.bytes;
    uint32_t plain = address + run.shared_offset;
    for (uint32_t done = 0; done < bytes;) {
      const uint32_t piece = gap != 0 ? unit.bytes : std::min(bytes - done, 16 - plain % 16);
      visit(Piece{meaning::swizzle_address(plain, box.map.swizzle) - kSharedBase, run.inside,
                  run.inside ? box.global(run.global_offset + done) : nullptr, piece, gap});
      done += piece;
      plain += piece + gap;
    }
  });
}

/// Checks the box's part of shared memory: it starts at a multiple of 128, and a swizzle exchanges
/// chunks within whole lines of 128 bytes.
bool access_box(Machine& m, Block& block, const Box& box, uint32_t address,
                const Accessor& accessor, const char* name) {
  if (!check_multiple(m, address, 128, "the shared address", name, accessor.record.at))
    return false;
  uint64_t bytes = meaning::box_extent(box.map);
  if (box.map.swizzle != TensorMapSwizzle::none) bytes = (bytes + 127) / 128 * 128;
  return m.access_shared(block, address, bytes, accessor, name);
}

/// ptx::TensorReduce, in its order.
constexpr ReduceOp kTensorReductions[] = {
    ReduceOp::kAdd,       ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kIncrement,
    ReduceOp::kDecrement, ReduceOp::kAnd, ReduceOp::kOr,  ReduceOp::kXor};
constexpr int kNoReduction = -1;

/// The map as a store bounds it: rows end at a multiple of 16 bytes, so that up to 15 bytes behind
/// the tensor's last element of a row are written as well.
TensorMapDescription bounds_of_store(TensorMapDescription map) {
  const uint64_t bytes = meaning::unit_of(map).bytes;
  map.sizes[0] = (map.sizes[0] * bytes + 15) / 16 * 16 / bytes;
  return map;
}

void store(int op, const TensorMap* map, const int32_t* coordinates, int rank, uint32_t source,
           const char* name, SourceLocation at) {
  Machine& m = machine();
  Block& block = *m.self().block;
  Box box = use_map(m, map, coordinates, rank, name, at);
  if (meaning::unit_of(box.map).elements != 1) {
    m.fail(FindingKind::invalid_operand, {at},
           by_whom(m, name, at) + ": elements of 4 and 6 bits are loaded alone");
  }
  box.map = bounds_of_store(box.map);
  const bool reduces = op != kNoReduction;
  const ReduceOp reduction = reduces ? kTensorReductions[op] : ReduceOp::kExchange;
  if (reduces && !meaning::can_reduce(reduction, box.map.element)) {
    m.fail(FindingKind::invalid_operand, {at},
           by_whom(m, name, at) + ": there is no such reduction of the tensor map's elements");
  }
  const uint64_t bytes = meaning::box_bytes(box.map);
  const AccessKind kind = reduces ? AccessKind::atomic_update : AccessKind::write;
  if (!check_start(m, box, true, name, at) ||
      !access_box(m, block, box, source, store_accessor(m, AccessKind::read, at), name) ||
      !access_tensor(m, box, store_accessor(m, kind, at), name)) {
    return;
  }
  issue_store(m, bytes, name, at, [box, reduces, reduction, source, &block] {
    const uint32_t size = meaning::unit_of(box.map).bytes;
    for_each_piece(box, source, [&](const Piece& piece) {
      if (!piece.inside) return;
      const std::byte* from = block.shared.data() + piece.offset;
      if (!reduces) {
        std::memcpy(piece.global, from, piece.bytes);
        return;
      }
      for (uint32_t i = 0; i < piece.bytes; i += size) {
        meaning::reduce_element(reduction, box.map.element, piece.global + i, from + i);
      }
    });
  });
}

/// Loads the box into `block`, and completes it on the mbarrier at `address` there.
void load(Machine& m, Block& block, const Box& box, uint32_t destination, uint32_t address,
          const char* name, SourceLocation at) {
  const auto mbarrier = use_mbarrier_async(m, block, address, name, at);
  const uint64_t bytes = meaning::box_bytes(box.map);
  const auto accessor = [&](AccessKind kind) { return load_accessor(m, *mbarrier, kind, at); };
  const bool valid = check_start(m, box, false, name, at) &&
                     access_box(m, block, box, destination, accessor(AccessKind::write), name) &&
                     access_tensor(m, box, accessor(AccessKind::read), name);
  // One that has been reported completes its bytes all the same, so that the run can go on.
  issue_load(m, mbarrier, bytes, name, at, [box, destination, valid, &block] {
    if (!valid) return;
    const uint64_t fill[2] = {meaning::fill_bits(box.map), meaning::fill_bits(box.map)};
    for_each_piece(box, destination, [&](const Piece& piece) {
      const void* from = fill;  // the same in each 16 bits
      if (piece.inside) from = piece.global;
      std::memcpy(block.shared.data() + piece.offset, from, piece.bytes);
      const auto gap = static_cast<std::ptrdiff_t>(piece.offset + piece.bytes);
      std::fill_n(block.shared.begin() + gap, piece.gap, std::byte{0xFF});
      std::fill_n(block.shared_state.begin() + gap, piece.gap, SharedState::unwritten);
    });
  });
}

}  // namespace

void tensor_load(uint32_t destination, const TensorMap* map, const int32_t* coordinates, int rank,
                 uint32_t mbarrier, SourceLocation at) {
  Machine& m = machine();
  const char* name = "cp_async_bulk_tensor_shared_global";
  load(m, *m.self().block, use_map(m, map, coordinates, rank, name, at), destination, mbarrier,
       name, at);
}

void tensor_load_multicast(uint32_t destination, const TensorMap* map, const int32_t* coordinates,
                           int rank, uint32_t mbarrier, uint16_t mask, SourceLocation at) {
  Machine& m = machine();
  const char* name = "cp_async_bulk_tensor_shared_global_multicast";
  m.require(Feature::tensor_multicast, name, at);
  const std::size_t blocks = m.self().cluster->blocks.size();
  if (mask == 0 || mask >> blocks != 0) {
    m.fail(FindingKind::invalid_operand, {at},
           by_whom(m, name, at) + ": its mask " + std::to_string(mask) +
               " is to name blocks of a cluster of " + std::to_string(blocks) +
               ", and one at least");
  }
  const Box box = use_map(m, map, coordinates, rank, name, at);
  for (uint32_t i = 0; i < blocks; ++i) {
    if ((mask >> i & 1) == 0) continue;
    load(m, use_block(m, i, name, at), box, destination, mbarrier, name, at);
  }
}

void tensor_gather(uint32_t destination, const TensorMap* map, const int32_t* coordinates,
                   uint32_t mbarrier, SourceLocation at) {
  Machine& m = machine();
  const char* name = "cp_async_bulk_tensor_shared_global_gather4";
  m.require(Feature::tensor_gather, name, at);
  Box box = use_map(m, map, coordinates, 2, name, at);
  if (box.map.box[1] != 1) {
    m.fail(FindingKind::invalid_operand, {at},
           by_whom(m, name, at) + " takes a tensor map whose box is one row, not " +
               std::to_string(box.map.box[1]));
  }
  box.map.box[1] = 4;
  box.map.element_strides[1] = 1;
  std::copy_n(coordinates, 5, box.coordinates.begin());
  box.is_gathered = true;
  load(m, *m.self().block, box, destination, mbarrier, name, at);
}

void tensor_store(const TensorMap* map, const int32_t* coordinates, int rank, uint32_t source,
                  SourceLocation at) {
  store(kNoReduction, map, coordinates, rank, source, "cp_async_bulk_tensor_global_shared", at);
}

void tensor_reduce(int op, const TensorMap* map, const int32_t* coordinates, int rank,
                   uint32_t source, SourceLocation at) {
  store(op, map, coordinates, rank, source, "cp_reduce_async_bulk_tensor_global_shared", at);
}

void tensor_prefetch(const TensorMap* map, const int32_t* coordinates, int rank,
                     SourceLocation at) {
  const char* name = rank == 0 ? "prefetch_tensormap" : "cp_async_bulk_prefetch_tensor";
  use_map(machine(), map, coordinates, rank, name, at);
}

}  // namespace blockscale::emulator
