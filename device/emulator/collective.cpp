// Collectives of a warp: the lanes named in the mask meet, the last one to come does the work.
#include <algorithm>
#include <bit>
#include <cstring>

#include "device/emulator/machine.h"
#include "device/emulator/meaning/convert.h"
#include "device/emulator/meaning/ldmatrix.h"
#include "device/emulator/meaning/mma.h"
#include "device/emulator/meaning/reduce.h"
#include "device/emulator/meaning/scaled_mma.h"

namespace blockscale::emulator {
namespace {

uint32_t lowest_lane(uint32_t mask) {
  return static_cast<uint32_t>(std::countr_zero(mask));
}

std::string lanes_text(uint32_t mask) {
  char text[16];
  std::snprintf(text, sizeof(text), "0x%08X", mask);
  return text;
}

void shuffle(Collective& c) {
  for (uint32_t rest = c.mask; rest != 0; rest &= rest - 1) {
    const uint32_t lane = lowest_lane(rest);
    const uint32_t operand = c.operands[lane] & 31u;
    const uint32_t control = c.parameter >> 2;
    const uint32_t segment = control >> 8 & 31u, clamp = control & 31u;
    const uint32_t low = lane & segment;
    const uint32_t high = low | (clamp & ~segment);
    uint32_t source = lane;
    switch (static_cast<Shuffle>(c.parameter & 3u)) {
      case Shuffle::up:
        // Lanes below the start of the segment do not exist; `high` is that start here.
        if (static_cast<int>(lane) - static_cast<int>(operand) >= static_cast<int>(high)) {
          source = lane - operand;
        }
        break;
      case Shuffle::down:
        if (lane + operand <= high) source = lane + operand;
        break;
      case Shuffle::bfly:
        if ((lane ^ operand) <= high) source = lane ^ operand;
        break;
      case Shuffle::idx:
        if ((low | (operand & ~segment)) <= high) source = low | (operand & ~segment);
        break;
    }
    if ((c.mask >> source & 1u) == 0) {
      Machine& m = machine();
      m.fail(FindingKind::divergent_collective, {c.at},
             "shfl_sync at " + text_of(c.at) + " by " + m.describe(m.self()) + ": lane " +
                 std::to_string(lane) + " reads lane " + std::to_string(source) +
                 ", which the mask " + lanes_text(c.mask) + " does not name");
    }
    c.results[lane] = c.values[source];
  }
}

/// Calls work(collective) once all lanes of `mask` are here; returns this lane's result.
template <class Work>
uint32_t meet(const char* name, uint32_t mask, uint32_t parameter, uint32_t value, uint32_t operand,
              SourceLocation at, const Work& work) {
  Machine& m = machine();
  Thread& thread = m.self();
  Warp& warp = *thread.warp;
  const uint32_t lane = thread.identity.laneid;
  const auto diverges = [&](const std::string& why, const Collective* other) {
    std::vector<SourceLocation> lines = {at};
    if (other != nullptr) lines.push_back(other->at);
    m.fail(FindingKind::divergent_collective, lines,
           std::string(name) + " at " + text_of(at) + " by " + m.describe(thread) + ", mask " +
               lanes_text(mask) + ": " + why);
  };
  if ((mask >> lane & 1u) == 0) diverges("the mask does not name the lane itself", nullptr);
  if ((mask & ~warp.live) != 0) {
    diverges("the mask names lanes that have exited: " + lanes_text(mask & ~warp.live), nullptr);
  }
  Collective* c = nullptr;
  for (Collective& other : warp.collectives) {
    if ((other.mask & mask) == 0) continue;
    if (other.mask != mask || !same_line(other.at, at) || std::strcmp(other.name, name) != 0 ||
        other.parameter != parameter) {
      diverges("lanes " + lanes_text(other.arrived) + " of the same warp are at " + other.name +
                   " at " + text_of(other.at) + ", mask " + lanes_text(other.mask),
               &other);
    }
    c = &other;
  }
  if (c == nullptr) {
    c = &warp.collectives.emplace_back();
    c->name = name;
    c->mask = mask;
    c->parameter = parameter;
    c->at = at;
  }
  c->arrived |= 1u << lane;
  c->values[lane] = value;
  c->operands[lane] = operand;
  if (c->arrived != mask) {
    Wait wait;
    wait.what = Wait::For::collective;
    wait.at = at;
    wait.mask = mask;
    wait.name = name;
    m.block(std::move(wait));
    return thread.collective_result;
  }
  work(*c);
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    Thread& other = *warp.threads[lowest_lane(rest)];
    other.collective_result = c->results[lowest_lane(rest)];
    m.wake(other);
  }
  warp.collectives.erase(warp.collectives.begin() + (c - warp.collectives.data()));
  m.progress();
  return thread.collective_result;
}

/// The registers of all lanes.
meaning::MmaFragments fragments_of(const Warp& warp) {
  meaning::MmaFragments fragments;
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    const MmaOperands& mma = warp.threads[lane]->mma;
    std::copy_n(mma.a, 4, fragments.a[lane]);
    std::copy_n(mma.b, 2, fragments.b[lane]);
    std::copy_n(mma.d, 4, fragments.d[lane]);
  }
  return fragments;
}
void give_sums(const Warp& warp, const meaning::MmaFragments& fragments) {
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    std::copy_n(fragments.d[lane], 4, warp.threads[lane]->mma.d);
  }
}

void multiply(const Warp& warp, Format format) {
  meaning::MmaFragments fragments = fragments_of(warp);
  meaning::mma(format, fragments);
  give_sums(warp, fragments);
}

/// Bits beside the elements of a byte are to be 0: no document says what becomes of others.
void check_padding(const Warp& warp, const meaning::ScaledMma& mma, SourceLocation at) {
  Machine& m = machine();
  const uint32_t of_a = meaning::padding_bits(mma.a, meaning::is_packed(mma));
  const uint32_t of_b = meaning::padding_bits(mma.b, meaning::is_packed(mma));
  for (const Thread* thread : warp.threads) {
    uint32_t a = 0, b = 0;
    for (uint32_t i = 0; i < 4; ++i) a |= thread->mma.a[i];
    for (uint32_t i = 0; i < 2; ++i) b |= thread->mma.b[i];
    if ((a & of_a) == 0 && (b & of_b) == 0) continue;
    m.report(FindingKind::invalid_operand, {at},
             "scaled_mma_sync at " + text_of(at) + " by " + m.describe(*thread) + ": bits of " +
                 ((a & of_a) != 0 ? "A" : "B") +
                 " that belong to no element are not 0: FP4 lies in bits 2 to 5 of a byte, FP6 in "
                 "bits 0 to 5");
    return;
  }
}

void multiply(const Warp& warp, const meaning::ScaledMma& mma, SourceLocation at) {
  check_padding(warp, mma, at);
  meaning::ScaledMmaFragments fragments = {};
  fragments.values = fragments_of(warp);
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    fragments.scales_a[lane] = warp.threads[lane]->mma.scales_a;
    fragments.scales_b[lane] = warp.threads[lane]->mma.scales_b;
  }
  meaning::scaled_mma(mma, fragments);
  give_sums(warp, fragments.values);
}

/// The matrices of one ldmatrix or stmatrix.
struct MatrixMove {
  const char* name;
  AccessKind kind;  // read or write
  uint32_t count;
  bool transposed;
  uint32_t number_bits = 16;  // 4 or 6: to a byte each
};

/// Moves `bytes` between a lane's word, from its bit `shift` on, and shared memory.
void move_part(Thread& lane, const MatrixMove& move, uint32_t address, uint32_t& word,
               uint32_t shift, uint32_t bytes, SourceLocation at) {
  Machine& m = machine();
  const Accessor accessor = m.accessor(lane, move.kind, at);
  if (!m.access_shared(*lane.block, address, bytes, accessor, move.name)) return;
  std::byte* const memory = lane.block->shared.data() + (address - kSharedBase);
  uint32_t part = word >> shift;
  if (move.kind == AccessKind::write) {
    std::memcpy(memory, &part, bytes);
    return;
  }
  part = 0;
  std::memcpy(&part, memory, bytes);
  word |= part << shift;
}

/// c.values are the addresses of rows.
void move_matrices(const Warp& warp, const MatrixMove& move, const Collective& c) {
  Machine& m = machine();
  for (uint32_t lane = 0; lane < meaning::kMatrixRows * move.count; ++lane) {
    if (c.values[lane] % meaning::kMatrixRowBytes == 0) continue;
    m.report(FindingKind::misaligned, {c.at},
             std::string(move.name) + " at " + text_of(c.at) + " by " +
                 m.describe(*warp.threads[lane]) +
                 ": the address of its row is no multiple of 16 bytes");
    return;
  }
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    for (uint32_t i = 0; i < move.count; ++i) {
      Thread& thread = *warp.threads[lane];
      const auto address = [&](uint32_t half) {
        const meaning::MatrixPlace place = meaning::matrix_place(lane, half, move.transposed);
        return c.values[meaning::kMatrixRows * i + place.row] + place.byte;
      };
      uint32_t& word = thread.matrix_words[i];
      if (move.number_bits != 16) {
        const uint32_t row = c.values[meaning::kMatrixRows * i + lane / 4];
        move_part(thread, move, row + meaning::packed_byte(lane, move.number_bits), word, 0,
                  move.number_bits / 2, c.at);
        word = meaning::unpack_numbers(word, move.number_bits);
      } else if (!move.transposed) {
        move_part(thread, move, address(0), word, 0, 4, c.at);
      } else {
        for (uint32_t half = 0; half < 2; ++half) {
          move_part(thread, move, address(half), word, 16 * half, 2, c.at);
        }
      }
    }
  }
}

/// All lanes: `words` are this one's, on its stack, which stays while it waits.
void meet_matrices(const MatrixMove& move, uint32_t row, uint32_t* words, SourceLocation at) {
  Thread& thread = machine().self();
  thread.matrix_words = words;
  const uint32_t key = move.number_bits << 4 | move.count << 1 | uint32_t{move.transposed};
  meet(move.name, ~0u, key, row, 0, at, [&](Collective& c) {
    move_matrices(*thread.warp, move, c);
    std::fill_n(c.results, kWarpSize, 0);
  });
}

/// The same result for all lanes.
void give_all(Collective& c, uint32_t result) {
  std::fill_n(c.results, kWarpSize, result);
}

}  // namespace

void meet_lanes(const char* name, uint32_t mask, uint32_t parameter, SourceLocation at) {
  meet(name, mask, parameter, 0, 0, at, [](Collective& c) { give_all(c, 0); });
}

uint32_t shfl_sync(Shuffle mode, uint32_t mask, uint32_t value, uint32_t operand, uint32_t control,
                   SourceLocation at) {
  return meet("shfl_sync", mask, control << 2 | static_cast<uint32_t>(mode), value, operand, at,
              shuffle);
}

uint32_t vote_sync(uint32_t mask, bool predicate, SourceLocation at) {
  return meet("vote_sync", mask, 0, predicate, 0, at, [](Collective& c) {
    uint32_t votes = 0;
    for (uint32_t rest = c.mask; rest != 0; rest &= rest - 1) {
      votes |= c.values[lowest_lane(rest)] << lowest_lane(rest);
    }
    give_all(c, votes);
  });
}

uint32_t match_any_sync(uint32_t mask, uint32_t value, SourceLocation at) {
  return meet("match_any_sync", mask, 0, value, 0, at, [](Collective& c) {
    for (uint32_t rest = c.mask; rest != 0; rest &= rest - 1) {
      const uint32_t lane = lowest_lane(rest);
      c.results[lane] = 0;
      for (uint32_t others = c.mask; others != 0; others &= others - 1) {
        const uint32_t other = lowest_lane(others);
        if (c.values[other] == c.values[lane]) c.results[lane] |= 1u << other;
      }
    }
  });
}

bool elect_sync(uint32_t mask, SourceLocation at) {
  Machine& m = machine();
  return meet("elect_sync", mask, 0, 0, 0, at, [&m](Collective& c) {
           // The same lane for the same mask: the lowest in order, any in random order.
           uint32_t rest = c.mask;
           if (m.random_order()) {
             uint64_t skip = (m.seed() * 0x9E3779B97F4A7C15u ^ c.mask) * 0xD1B54A32D192ED03u >> 32;
             for (skip %= static_cast<uint64_t>(std::popcount(c.mask)); skip != 0; --skip)
               rest &= rest - 1;
           }
           give_all(c, 0);
           c.results[lowest_lane(rest)] = 1;
         }) != 0;
}

uint32_t redux_sync(ReduceOp op, uint32_t mask, uint32_t value, SourceLocation at) {
  return meet("redux_sync", mask, static_cast<uint32_t>(op), value, 0, at, [op](Collective& c) {
    uint32_t result = c.values[lowest_lane(c.mask)];
    for (uint32_t rest = c.mask & (c.mask - 1); rest != 0; rest &= rest - 1) {
      result = meaning::reduce(op, result, c.values[lowest_lane(rest)]);
    }
    give_all(c, result);
  });
}

void mma_sync(uint32_t element, float* d, const uint32_t* a, const uint32_t* b, SourceLocation at) {
  Thread& thread = machine().self();
  thread.mma = {.d = d, .a = a, .b = b};  // of the lane's stack, which stays while it waits
  meet("mma_sync", ~0u, element, 0, 0, at, [&thread](Collective& c) {
    multiply(*thread.warp, meaning::kMmaFormats[c.parameter]);
    give_all(c, 0);
  });
}

void scaled_mma_sync(const meaning::ScaledMma& mma, float* d, const uint32_t* a, const uint32_t* b,
                     uint32_t scales_a, uint32_t scales_b, SourceLocation at) {
  Machine& m = machine();
  Thread& thread = m.self();
  m.require(Feature::scaled_mma, "scaled_mma_sync", at);
  thread.mma = {.d = d, .a = a, .b = b, .scales_a = scales_a, .scales_b = scales_b};
  meet("scaled_mma_sync", ~0u, meaning::key_of(mma), 0, 0, at, [&](Collective& c) {
    multiply(*thread.warp, mma, at);
    give_all(c, 0);
  });
}

void scaled_mma_sync_f16(const meaning::ScaledMma& mma, uint32_t* d, const uint32_t* a,
                         const uint32_t* b, SourceLocation at) {
  float sums[4];
  for (uint32_t i = 0; i < 4; ++i)
    sums[i] = decode<Format::f16>(d[i / 2] >> 16 * (i % 2) & 0xFFFFu);
  scaled_mma_sync(mma, sums, a, b, 0, 0, at);
  for (uint32_t i = 0; i < 2; ++i) {
    d[i] = meaning::pack_16<Format::f16>(sums[2 * i + 1], sums[2 * i]);
  }
}

void ldmatrix(uint32_t row, uint32_t count, bool transposed, uint32_t* words, SourceLocation at) {
  std::fill_n(words, count, 0);
  machine().note_read(at);
  meet_matrices({"ldmatrix", AccessKind::read, count, transposed}, row, words, at);
}

void ldmatrix_b8x16(uint32_t row, uint32_t bits, uint32_t count, uint32_t* words,
                    SourceLocation at) {
  const char* name = "ldmatrix_b8x16";
  Machine& m = machine();
  m.require(Feature::padded_elements, name, at);
  std::fill_n(words, count, 0);
  m.note_read(at);
  meet_matrices({name, AccessKind::read, count, false, bits}, row, words, at);
}

void stmatrix(uint32_t row, uint32_t count, bool transposed, const uint32_t* words,
              SourceLocation at) {
  uint32_t copies[4] = {};
  std::copy_n(words, count, copies);
  meet_matrices({"stmatrix", AccessKind::write, count, transposed}, row, copies, at);
}

void bar_warp_sync(uint32_t mask, SourceLocation at) {
  Machine& m = machine();
  meet("bar_warp_sync", mask, 0, 0, 0, at, [&m](Collective& c) {
    Warp& warp = *m.self().warp;
    ReleaseBuilder released;
    for (uint32_t rest = c.mask; rest != 0; rest &= rest - 1) {
      const Thread& lane = *warp.threads[lowest_lane(rest)];
      released.add(lane.views, lane.engines);
    }
    for (uint32_t rest = c.mask; rest != 0; rest &= rest - 1) {
      Thread& lane = *warp.threads[lowest_lane(rest)];
      m.acquire(lane, released.freeze());
      m.tick(lane);
    }
    give_all(c, 0);
  });
}

}  // namespace blockscale::emulator
