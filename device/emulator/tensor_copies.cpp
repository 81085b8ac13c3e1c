// cp.async.bulk.tensor and its reducing and prefetching forms.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

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

  std::byte* global(uint64_t offset) const {
    return reinterpret_cast<std::byte*>(map.address) + offset;
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
  if (rank != 0 && description->rank != static_cast<uint32_t>(rank)) {
    m.fail(FindingKind::invalid_operand, {at},
           by_whom(m, name, at) + " has " + std::to_string(rank) +
               " coordinates, its tensor map has rank " + std::to_string(description->rank));
  }
  Box box = {*description, {}};
  std::copy_n(coordinates, rank, box.coordinates.begin());
  return box;
}

/// A copy starts at a multiple of 16 bytes of a row; one that writes, at no negative coordinate. An
/// H200 stops at others with "illegal instruction".
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
  const int64_t bytes = int64_t{box.coordinates[0]} * meaning::element_bytes(box.map.element);
  return check_multiple(m, static_cast<uint64_t>(bytes), 16, "coordinate 0, in bytes,", name, at);
}

/// Checks the box's part of global memory, a run at a time: it lies in the buffer that the map's
/// address is in.
bool access_tensor(Machine& m, const Box& box, const Accessor& accessor, const char* name) {
  const uint32_t size = meaning::element_bytes(box.map.element);
  bool valid = true;
  meaning::for_each_run(box.map, box.coordinates.data(), [&](const meaning::BoxRun& run) {
    if (!run.inside || !valid) return;
    valid = m.access_global(box.global(run.global_offset), uint64_t{run.elements} * size, accessor,
                            name, box.global(0));
  });
  return valid;
}

/// visit(shared byte offset of the block, run, element in the run) for each element of the box.
template <class Visit>
void for_each_element(const Box& box, uint32_t address, const Visit& visit) {
  const uint32_t bytes = meaning::element_bytes(box.map.element);
  meaning::for_each_run(box.map, box.coordinates.data(), [&](const meaning::BoxRun& run) {
    for (uint32_t e = 0; e < run.elements; ++e) {
      const uint32_t plain = address + run.shared_offset + e * bytes;
      visit(meaning::swizzle_address(plain, box.map.swizzle) - kSharedBase, run, e);
    }
  });
}

/// Checks the box's part of shared memory: it starts at a multiple of 128, and a swizzle exchanges
/// chunks within whole lines of 128 bytes.
bool access_box(Machine& m, const Box& box, uint32_t address, const Accessor& accessor,
                const char* name) {
  if (!check_multiple(m, address, 128, "the shared address", name, accessor.record.at))
    return false;
  uint64_t bytes = meaning::box_extent(box.map);
  if (box.map.swizzle != TensorMapSwizzle::none) bytes = (bytes + 127) / 128 * 128;
  return m.access_shared(*m.self().block, address, bytes, accessor, name);
}

/// ptx::TensorReduce, in its order.
constexpr ReduceOp kTensorReductions[] = {
    ReduceOp::kAdd,       ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kIncrement,
    ReduceOp::kDecrement, ReduceOp::kAnd, ReduceOp::kOr,  ReduceOp::kXor};
constexpr int kNoReduction = -1;

/// The map as a store bounds it: rows end at a multiple of 16 bytes, so that up to 15 bytes behind
/// the tensor's last element of a row are written as well.
TensorMapDescription bounds_of_store(TensorMapDescription map) {
  const uint64_t bytes = meaning::element_bytes(map.element);
  map.sizes[0] = (map.sizes[0] * bytes + 15) / 16 * 16 / bytes;
  return map;
}

void store(int op, const TensorMap* map, const int32_t* coordinates, int rank, uint32_t source,
           const char* name, SourceLocation at) {
  Machine& m = machine();
  Block& block = *m.self().block;
  Box box = use_map(m, map, coordinates, rank, name, at);
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
      !access_box(m, box, source, store_accessor(m, AccessKind::read, at), name) ||
      !access_tensor(m, box, store_accessor(m, kind, at), name)) {
    return;
  }
  issue_store(m, bytes, name, at, [box, reduces, reduction, source, &block] {
    const uint32_t size = meaning::element_bytes(box.map.element);
    for_each_element(box, source, [&](uint32_t offset, const meaning::BoxRun& run, uint32_t e) {
      if (!run.inside) return;
      std::byte* to = box.global(run.global_offset + uint64_t{e} * size);
      const std::byte* from = block.shared.data() + offset;
      if (reduces) {
        meaning::reduce_element(reduction, box.map.element, to, from);
      } else {
        std::memcpy(to, from, size);
      }
    });
  });
}

}  // namespace

void tensor_load(uint32_t destination, const TensorMap* map, const int32_t* coordinates, int rank,
                 uint32_t address, SourceLocation at) {
  Machine& m = machine();
  Block& block = *m.self().block;
  const char* name = "cp_async_bulk_tensor_shared_global";
  const auto mbarrier = use_mbarrier_async(m, address, name, at);
  const Box box = use_map(m, map, coordinates, rank, name, at);
  const uint64_t bytes = meaning::box_bytes(box.map);
  const bool valid =
      check_start(m, box, false, name, at) &&
      access_box(m, box, destination, load_accessor(m, *mbarrier, AccessKind::write, at), name) &&
      access_tensor(m, box, load_accessor(m, *mbarrier, AccessKind::read, at), name);
  // One that has been reported completes its bytes all the same, so that the run can go on.
  issue_load(m, mbarrier, bytes, name, at, [box, destination, valid, &block] {
    if (!valid) return;
    const uint32_t size = meaning::element_bytes(box.map.element);
    const uint64_t fill = meaning::fill_bits(box.map);
    for_each_element(box, destination,
                     [&](uint32_t offset, const meaning::BoxRun& run, uint32_t e) {
                       const void* from = &fill;  // little-endian: its first bytes
                       if (run.inside) from = box.global(run.global_offset + uint64_t{e} * size);
                       std::memcpy(block.shared.data() + offset, from, size);
                     });
  });
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
