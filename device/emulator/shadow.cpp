#include "device/emulator/shadow.h"

#include <algorithm>
#include <new>

namespace blockscale::emulator {
namespace {

// Packed::bits: the proxy, the kind, the clock.
constexpr uint32_t kAsync = 1u << 31;
constexpr int kKindShift = 28;
constexpr uint32_t kClock = (1u << kKindShift) - 1;

AccessKind kind_of(uint32_t bits) {
  return static_cast<AccessKind>(bits >> kKindShift & 7u);
}

/// Whether two unordered accesses are a race.
bool conflicting(AccessKind a, AccessKind b) {
  return (writes(a) || writes(b)) && !(is_atomic(a) && is_atomic(b));
}

/// Whether one of the two reads past the coherent caches what the other writes, so that no order
/// between them helps.
bool noncoherent(AccessKind a, AccessKind b) {
  return (a == AccessKind::read_nc && writes(b)) || (b == AccessKind::read_nc && writes(a));
}

static_assert(sizeof(SourceLocation) == sizeof(void*));

}  // namespace

Shadow::Packed Shadow::pack(const Record& record) {
  const uint32_t bits = (record.clock & kClock) | static_cast<uint32_t>(record.kind) << kKindShift |
                        (record.async ? kAsync : 0u);
  return {record.actor, bits, bit_cast<const void*>(record.at)};
}

Record Shadow::unpack(const Packed& packed) {
  return {packed.actor, packed.bits & kClock, bit_cast<SourceLocation>(packed.at),
          kind_of(packed.bits), (packed.bits & kAsync) != 0};
}

bool knows(const Accessor& accessor, const Knowledge& knowledge, Actor actor, uint32_t clock) {
  // What its own engines have done a thread may also have heard from others, behind an mbarrier.
  const Actor engine = actor - accessor.first;
  if (engine < kWgmma && knowledge.own[engine] >= clock) return true;
  if (actor == accessor.wgmma && knowledge.own[kWgmma] >= clock) return true;
  if (knowledge.base == nullptr) return false;
  const Actor index = actor - accessor.cluster_first;
  if (index >> kActorBits == 0) {
    const Clocks& known = knowledge.base->known;
    return index < known.size() && known[index] >= clock;
  }
  if (knowledge.base->foreign == nullptr) return false;
  const auto clocks = knowledge.base->foreign->find((actor - 1) >> kActorBits);
  if (clocks == knowledge.base->foreign->end()) return false;
  const uint32_t other = (actor - 1) & ((1u << kActorBits) - 1);
  return other < clocks->second.size() && clocks->second[other] >= clock;
}

Shadow::Shadow(std::size_t bytes) {
  // Zeros from calloc cost nothing until they are touched.
  const std::size_t cells = std::max<std::size_t>(1, (bytes + 3) / 4);
  cells_.reset(static_cast<Cell*>(std::calloc(cells, sizeof(Cell))));
  if (cells_ == nullptr) throw std::bad_alloc();
}

bool Shadow::ordered(const Packed& earlier, const Accessor& accessor, bool* only_unpublished) {
  const uint32_t clock = earlier.bits & kClock;
  if (!knows(accessor, (*accessor.views)[kSeen], earlier.actor, clock)) return false;
  // The asynchronous proxy sees an ordinary write only behind a proxy fence. (What it has read or
  // written itself it signals through an mbarrier or a group, which fence by themselves; and that
  // an ordinary read is over needs no fence.)
  const bool ordinary_write = (earlier.bits & kAsync) == 0 && writes(kind_of(earlier.bits));
  if (!accessor.record.async || !ordinary_write) return true;
  *only_unpublished = true;
  return knows(accessor, (*accessor.views)[accessor.published], earlier.actor, clock);
}

std::optional<Conflict::Why> Shadow::why_not(const Packed& earlier, const Accessor& accessor) {
  bool only_unpublished = false;
  if (!ordered(earlier, accessor, &only_unpublished)) {
    return only_unpublished ? Conflict::Why::unpublished : Conflict::Why::unordered;
  }
  if (noncoherent(kind_of(earlier.bits), accessor.record.kind)) return Conflict::Why::noncoherent;
  return std::nullopt;
}

void Shadow::check(const Packed& earlier, const Accessor& accessor, std::size_t offset,
                   std::optional<Conflict>& conflict) {
  if (earlier.actor == 0 || conflict.has_value()) return;
  const auto why = why_not(earlier, accessor);
  if (why) conflict = Conflict{unpack(earlier), *why, offset};
}

void Shadow::check_readers(const Cell& cell, const Accessor& accessor, std::size_t offset,
                           std::optional<Conflict>& conflict) const {
  const auto check_one = [&](const Packed& reader) {
    if (conflicting(kind_of(reader.bits), accessor.record.kind)) {
      check(reader, accessor, offset, conflict);
    }
  };
  if (cell.read.actor != kMany) return check_one(cell.read);
  for (const Packed& reader : many_[cell.read.bits].packed) check_one(reader);
}

void Shadow::add_reader(Cell& cell, const Accessor& accessor, const Packed& packed) {
  Packed& single = cell.read;
  if (single.actor != kMany) {
    // One access stands for an earlier one of its kind that happened before it.
    bool unpublished = false;
    const bool same_kind = (single.bits & ~kClock) == (packed.bits & ~kClock);
    if (single.actor == 0 ||
        (same_kind && (single.actor == packed.actor || ordered(single, accessor, &unpublished)))) {
      single = packed;
      return;
    }
    uint32_t index = static_cast<uint32_t>(many_.size());
    if (free_many_.empty()) {
      many_.emplace_back();
    } else {
      index = free_many_.back();
      free_many_.pop_back();
    }
    many_[index].packed.push_back(single);
    single = {kMany, index, nullptr};
  }
  Readers& readers = many_[single.bits];
  const auto key = [](const Packed& p) { return uint64_t{p.actor} << 8 | p.bits >> kKindShift; };
  if (readers.packed.size() < kIndexed) {
    for (Packed& old : readers.packed) {
      if (key(old) != key(packed)) continue;
      old = packed;
      return;
    }
  } else {
    if (readers.index.empty()) {
      for (std::size_t i = 0; i < readers.packed.size(); ++i) {
        readers.index[key(readers.packed[i])] = i;
      }
    }
    const auto [place, added] = readers.index.try_emplace(key(packed), readers.packed.size());
    if (!added) {
      readers.packed[place->second] = packed;
      return;
    }
  }
  readers.packed.push_back(packed);
}

void Shadow::split(Cell& cell) {
  std::array<Cell, 4> bytes;
  bytes.fill(cell);
  if (cell.read.actor == kMany) {  // each byte has readers of its own from now on
    for (std::size_t i = 1; i < 4; ++i) {
      many_.push_back(many_[cell.read.bits]);
      bytes[i].read.bits = static_cast<uint32_t>(many_.size() - 1);
    }
  }
  cell.write = {kSplit, static_cast<uint32_t>(split_.size()), nullptr};
  split_.push_back(bytes);
}

void Shadow::access_cell(Cell& cell, const Accessor& accessor, std::size_t offset,
                         std::optional<Conflict>& conflict) {
  check(cell.write, accessor, offset, conflict);
  const Packed packed = pack(accessor.record);
  const bool only_reads = cell.read.actor != kMany && kind_of(cell.read.bits) == AccessKind::read &&
                          accessor.record.kind == AccessKind::read;
  if (cell.read.actor != 0 && !only_reads) check_readers(cell, accessor, offset, conflict);
  if (accessor.record.kind != AccessKind::write) return add_reader(cell, accessor, packed);
  cell.write = packed;
  if (cell.read.actor == kMany) {
    Readers& readers = many_[cell.read.bits];
    readers.packed.clear();
    readers.index.clear();
    free_many_.push_back(cell.read.bits);
  }
  cell.read = {};
}

std::optional<Conflict> Shadow::access(std::size_t offset, std::size_t bytes,
                                       const Accessor& accessor) {
  std::optional<Conflict> conflict;
  const std::size_t end = offset + bytes;
  while (offset < end) {
    Cell& cell = cells_[offset / 4];
    const std::size_t word = offset & ~std::size_t{3};
    const bool whole = offset == word && end - word >= 4;
    if (!whole && cell.write.actor != kSplit) split(cell);
    if (cell.write.actor != kSplit) {
      access_cell(cell, accessor, word, conflict);
      offset = word + 4;
      continue;
    }
    for (; offset < end && offset < word + 4; ++offset) {
      access_cell(split_[cell.write.bits][offset - word], accessor, offset, conflict);
    }
  }
  return conflict;
}

}  // namespace blockscale::emulator
