#include "device/emulator/clock.h"

#include <algorithm>

namespace blockscale::emulator {
namespace {

// The emulator's longest loops: clocks of all actors of a cluster. Sanitizers, which would double
// the time of all tests, leave out what callers vouch for.

/// Makes each number the larger one; returns whether any rose.
__attribute__((no_sanitize("address", "undefined"))) bool raise_numbers(uint32_t* into,
                                                                        const uint32_t* from,
                                                                        std::size_t count) {
  uint32_t rose = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool rises = from[i] > into[i];
    rose |= static_cast<uint32_t>(rises);
    into[i] = rises ? from[i] : into[i];
  }
  return rose != 0;
}

/// Makes each number the smaller one.
__attribute__((no_sanitize("address", "undefined"))) void lower_numbers(uint32_t* into,
                                                                        const uint32_t* from,
                                                                        std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) into[i] = from[i] < into[i] ? from[i] : into[i];
}

/// Joins `from` into `into`; returns whether any clock rose.
bool raise_foreign(std::shared_ptr<const ClusterClocks>& into,
                   const std::shared_ptr<const ClusterClocks>& from) {
  if (from == nullptr || from == into) return false;
  if (into == nullptr) {
    into = from;
    return true;
  }
  auto joined = std::make_shared<ClusterClocks>(*into);
  bool rose = false;
  for (const auto& [cluster, clocks] : *from) {
    rose = emulator::raise((*joined)[cluster], clocks) || rose;
  }
  if (rose) into = std::move(joined);
  return rose;
}

bool raise_all(Clock& into, const Clock& from) {
  const bool known = emulator::raise(into.known, from.known);
  return raise_foreign(into.foreign, from.foreign) || known;
}

}  // namespace

bool raise(Clocks& into, const Clocks& from) {
  if (into.size() < from.size()) into.resize(from.size());
  return raise_numbers(into.data(), from.data(), from.size());
}

void raise(Clocks& clocks, uint32_t index, uint32_t clock) {
  if (clocks.size() <= index) clocks.resize(index + 1);
  clocks[index] = std::max(clocks[index], clock);
}

ClockPointer ClockJoiner::join(const ClockPointer& a, const ClockPointer& b) {
  if (a == b || b == nullptr) return a;
  if (a == nullptr) return b;
  for (const Result& result : results_) {
    if (result.a == a && result.b == b) return result.joined;
  }
  const auto sum = std::make_shared<Clock>(*a);
  ClockPointer joined = a;
  if (raise_all(*sum, *b)) {
    Clock reverse = *b;
    joined = b;
    if (raise_all(reverse, *a)) joined = sum;
  }
  results_[next_] = {a, b, joined};
  next_ = (next_ + 1) % results_.size();
  return joined;
}

ClockPointer known_to_both(const ClockPointer& a, const ClockPointer& b) {
  if (a == b) return a;
  if (a == nullptr || b == nullptr) return nullptr;
  auto both = std::make_shared<Clock>();  // of this cluster alone
  both->known = a->known;
  both->known.resize(std::min(a->known.size(), b->known.size()));
  lower_numbers(both->known.data(), b->known.data(), both->known.size());
  return both;
}

void ReleaseBuilder::ClockBuilder::add(const Knowledge& knowledge, Engines engines) {
  if (knowledge.base != nullptr && knowledge.base != last_added_) {
    if (raise_all(value_, *knowledge.base)) frozen_ = nullptr;
    last_added_ = knowledge.base;
  }
  for (uint32_t engine = 0; engine < kEngines; ++engine) {
    if (knowledge.own[engine] != 0) raise(engines[engine], knowledge.own[engine]);
  }
}

void ReleaseBuilder::ClockBuilder::raise(uint32_t index, uint32_t clock) {
  if (index < value_.known.size() && value_.known[index] >= clock) return;
  emulator::raise(value_.known, index, clock);
  frozen_ = nullptr;
}

ClockPointer ReleaseBuilder::ClockBuilder::freeze() {
  if (value_.known.empty() && value_.foreign == nullptr) return nullptr;
  if (frozen_ == nullptr) frozen_ = std::make_shared<const Clock>(value_);
  return frozen_;
}

void ReleaseBuilder::add(const Views& views, Engines engines) {
  for (uint32_t view = 0; view < kViews; ++view) parts_[view].add(views[view], engines);
}

ViewClocks ReleaseBuilder::freeze() {
  return {parts_[0].freeze(), parts_[1].freeze(), parts_[2].freeze()};
}

void GlobalRelease::add(const Views& views, uint32_t cluster, Engines engines) {
  for (uint32_t view = 0; view < kViews; ++view) {
    const Knowledge& knowledge = views[view];
    Clocks& clocks = parts_[view][cluster];
    if (knowledge.base != nullptr) {
      raise(clocks, knowledge.base->known);
      if (knowledge.base->foreign != nullptr) {
        for (const auto& [other, known] : *knowledge.base->foreign) {
          raise(parts_[view][other], known);
        }
      }
    }
    for (uint32_t engine = 0; engine < kEngines; ++engine) {
      if (knowledge.own[engine] != 0) raise(clocks, engines[engine], knowledge.own[engine]);
    }
  }
}

void GlobalRelease::add(const GlobalRelease& other) {
  for (uint32_t view = 0; view < kViews; ++view) {
    for (const auto& [cluster, known] : other.parts_[view]) raise(parts_[view][cluster], known);
  }
}

ViewClocks GlobalRelease::view(uint32_t cluster) const {
  ViewClocks views;
  for (uint32_t view = 0; view < kViews; ++view) {
    auto clock = std::make_shared<Clock>();
    auto foreign = std::make_shared<ClusterClocks>(parts_[view]);
    if (const auto own = foreign->find(cluster); own != foreign->end()) {
      clock->known = std::move(own->second);
      foreign->erase(own);
    }
    if (!foreign->empty()) clock->foreign = std::move(foreign);
    views[view] = std::move(clock);
  }
  return views;
}

}  // namespace blockscale::emulator
