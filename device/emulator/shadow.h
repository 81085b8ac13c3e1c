// Shadow memory: who last wrote and who has since read each byte, for finding races.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "device/emulator/clock.h"
#include "device/kernel.h"

namespace blockscale::emulator {

enum class AccessKind : uint8_t {
  read,
  read_nc,  // ld.global.nc: past the coherent caches, of memory that nobody is to write
  write,
  atomic_load,
  atomic_store,
  atomic_update,
};
constexpr bool is_atomic(AccessKind kind) {
  return kind >= AccessKind::atomic_load;
}
constexpr bool reads(AccessKind kind) {
  return kind != AccessKind::write && kind != AccessKind::atomic_store;
}
constexpr bool writes(AccessKind kind) {
  return kind == AccessKind::write || kind == AccessKind::atomic_store ||
         kind == AccessKind::atomic_update;
}

/// One access, as it is remembered.
struct Record {
  Actor actor = 0;
  uint32_t clock = 0;
  SourceLocation at;
  AccessKind kind = AccessKind::read;
  bool async = false;  // by the asynchronous proxy
};

/// Who accesses: the record to keep, and what decides whether earlier accesses happened before it.
struct Accessor {
  Record record;
  const Views* views;  // of the thread that issues the access
  View published;      // the one that counts for the memory that is accessed
  Actor first;         // the thread's first actor
  Actor wgmma;         // of its warpgroup's products
  Actor cluster_first;
};

/// Whether `accessor` knows of `actor`'s accesses up to `clock`, by `knowledge`.
bool knows(const Accessor& accessor, const Knowledge& knowledge, Actor actor, uint32_t clock);

/// An earlier access that this one does not go with.
struct Conflict {
  enum class Why : uint8_t {
    unordered,    // it did not happen before this one
    unpublished,  // it did, but no proxy fence has published it
    noncoherent,  // it did, but one of the two is an ld.global.nc of what the other writes
  };
  Record earlier;
  Why why;
  std::size_t offset;  // of the byte or word
};

/// Shadow of a range of memory that starts at a multiple of 4. A word of 4 bytes has one cell until
/// it is accessed in part, and one for each byte from then on.
class Shadow {
 public:
  explicit Shadow(std::size_t bytes);

  /// Remembers the access, and returns the first earlier one that it does not go with. Bytes that
  /// are only read and never written by the same launch need not come here.
  std::optional<Conflict> access(std::size_t offset, std::size_t bytes, const Accessor& accessor);

 private:
  // A Record in 16 bytes. A cell of zeros is an empty one.
  struct Packed {
    Actor actor;
    uint32_t bits;  // the clock, the kind and the proxy
    const void* at;
  };
  static Packed pack(const Record& record);
  static Record unpack(const Packed& packed);

  struct Cell {
    Packed write;  // the last one, or kSplit and an index into split_
    Packed read;   // the only other access since, or kMany and an index into many_
  };
  struct Readers {  // reads and atomics since the last plain write: the last of each actor and kind
    std::vector<Packed> packed;
    std::unordered_map<uint64_t, std::size_t> index;  // filled from kIndexed of them on
  };
  static constexpr Actor kSplit = ~Actor{0};
  static constexpr Actor kMany = ~Actor{0};
  static constexpr std::size_t kIndexed = 16;

  void access_cell(Cell& cell, const Accessor& accessor, std::size_t offset,
                   std::optional<Conflict>& conflict);
  void check_readers(const Cell& cell, const Accessor& accessor, std::size_t offset,
                     std::optional<Conflict>& conflict) const;
  void add_reader(Cell& cell, const Accessor& accessor, const Packed& packed);
  void split(Cell& cell);
  static bool ordered(const Packed& earlier, const Accessor& accessor, bool* only_unpublished);
  static std::optional<Conflict::Why> why_not(const Packed& earlier, const Accessor& accessor);
  static void check(const Packed& earlier, const Accessor& accessor, std::size_t offset,
                    std::optional<Conflict>& conflict);

  struct Free {
    void operator()(Cell* cells) const { std::free(cells); }
  };
  std::unique_ptr<Cell[], Free> cells_;
  std::deque<std::array<Cell, 4>> split_;
  std::deque<Readers> many_;
  std::vector<uint32_t> free_many_;
};

}  // namespace blockscale::emulator
