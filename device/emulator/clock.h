// Vector clocks: what a thread knows to have happened.
//
// An *actor* is whoever accesses memory in an order of its own: a thread, and each asynchronous
// engine. Its accesses carry its clock at the time. A is before B if who did B knows of A's actor a
// clock of at least A's. The threads of a cluster mostly know the same after a barrier, so that
// they share one immutable Clock and differ only in what they know of themselves: a barrier then
// costs a pointer for each thread and not a vector.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace blockscale::emulator {

/// An actor is 1 + (cluster << kActorBits) + (index in the cluster). 0 is nobody.
using Actor = uint32_t;
inline constexpr int kActorBits = 16;  // 5 engines of up to 8192 threads, and mbarriers

/// Actors of a cluster, in this order: kEngines for each thread, then "the previous kernel", then
/// one for each mbarrier that is initialised.
enum Engine : uint32_t {
  kThread = 0,     // ordinary instructions
  kCpAsync = 1,    // cp.async: its clock counts the thread's groups
  kBulkRead = 2,   // bulk stores: reads of shared memory, by groups
  kBulkWrite = 3,  // bulk stores: writes of global memory, by groups
  kWgmma = 4,      // of a warpgroup's first thread: what its products read, by groups
};
inline constexpr uint32_t kEngines = 5;

/// Where a thread's engines are among the actors of its cluster. A warpgroup's threads share one
/// engine for their products, whose clock each of them learns in its own waits.
struct Engines {
  uint32_t first = 0;  // the thread's own
  uint32_t wgmma = 0;  // its warpgroup's
  constexpr uint32_t operator[](uint32_t engine) const {
    return engine == kWgmma ? wgmma : first + engine;
  }
};

/// Clocks by index in the cluster; those beyond the end are 0.
using Clocks = std::vector<uint32_t>;

/// Clocks of all clusters that something is known of.
using ClusterClocks = std::map<uint32_t, Clocks>;

struct Clock {
  Clocks known;                                  // of this cluster
  std::shared_ptr<const ClusterClocks> foreign;  // of others; often none
};
using ClockPointer = std::shared_ptr<const Clock>;

/// What one thread knows: `base`, and the newest of its engines.
struct Knowledge {
  ClockPointer base;
  std::array<uint32_t, kEngines> own = {};
};

/// Raises each clock of `into` to that of `from`; returns whether any rose.
bool raise(Clocks& into, const Clocks& from);
void raise(Clocks& clocks, uint32_t index, uint32_t clock);

/// The clock that knows what either does; one of the two where it knows all. Null knows nothing.
/// Remembers its last results, because the threads of a warp ask for the same one.
class ClockJoiner {
 public:
  ClockPointer join(const ClockPointer& a, const ClockPointer& b);

 private:
  struct Result {
    ClockPointer a, b, joined;
  };
  std::array<Result, 8> results_;
  std::size_t next_ = 0;
};

/// What both know. Null knows nothing.
ClockPointer known_to_both(const ClockPointer& a, const ClockPointer& b);

/// What a thread knows in three ways: all that happens before its next access, and of that the part
/// which a proxy fence has published to asynchronous accesses of shared and of global memory.
enum View : uint32_t { kSeen = 0, kPublishedShared = 1, kPublishedGlobal = 2 };
inline constexpr uint32_t kViews = 3;
using Views = std::array<Knowledge, kViews>;
using ViewClocks = std::array<ClockPointer, kViews>;

/// What has been released to a barrier: the views of all that have arrived.
class ReleaseBuilder {
 public:
  /// The views of the thread whose engines these are.
  void add(const Views& views, Engines engines);
  /// Raises one actor's clock in the view of what was seen.
  void raise(uint32_t index, uint32_t clock) { parts_[kSeen].raise(index, clock); }
  ViewClocks freeze();

 private:
  class ClockBuilder {
   public:
    void add(const Knowledge& knowledge, Engines engines);
    void raise(uint32_t index, uint32_t clock);
    ClockPointer freeze();

   private:
    Clock value_;
    ClockPointer last_added_;
    ClockPointer frozen_;  // of `value_` as it is, or null
  };
  std::array<ClockBuilder, kViews> parts_;
};

/// What has been released to a word of global memory, by any cluster.
class GlobalRelease {
 public:
  bool empty() const { return parts_[kSeen].empty(); }
  void add(const Views& views, uint32_t cluster, Engines engines);
  void add(const GlobalRelease& other);
  /// As it is seen in `cluster`.
  ViewClocks view(uint32_t cluster) const;

 private:
  std::array<ClusterClocks, kViews> parts_;
};

}  // namespace blockscale::emulator
