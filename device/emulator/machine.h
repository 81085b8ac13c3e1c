// The state of a launch: clusters of blocks of warps of threads, and who may run. Internal to the
// emulator; instructions are functions over it.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/emulator/clock.h"
#include "device/emulator/emulator.h"
#include "device/emulator/fiber.h"
#include "device/emulator/instructions.h"
#include "device/emulator/shadow.h"
#include "device/emulator/warpgroup.h"

namespace blockscale::emulator {

inline constexpr uint32_t kWarpSize = 32;
inline constexpr uint32_t kNamedBarriers = 16;
/// Where dynamic shared memory begins: the first KiB is the system's.
inline constexpr uint32_t kSharedBase = 1024;

struct Block;
struct Cluster;
struct Mbarrier;
struct Thread;
struct Transfer;
struct Warp;

/// Why a thread does not run.
struct Wait {
  enum class For : uint8_t {
    nothing,
    collective,
    named_barrier,
    mbarrier,
    wgmma,
    cluster_barrier,
    poll
  };
  For what = For::nothing;
  SourceLocation at;
  uint32_t mask = 0;                   // of a collective
  const char* name = "";               // of a collective's instruction
  uint32_t id = 0;                     // of a named barrier, or of a group of products
  std::shared_ptr<Mbarrier> mbarrier;  // with the parity awaited
  uint32_t parity = 0;
};

/// The registers of the mma.sync that a thread waits in.
struct MmaOperands {
  float* d = nullptr;
  const uint32_t* a = nullptr;
  const uint32_t* b = nullptr;
  uint32_t scales_a = 0;  // of a product that scales
  uint32_t scales_b = 0;
};

struct Thread {
  Identity identity;
  Cluster* cluster = nullptr;
  Block* block = nullptr;
  Warp* warp = nullptr;
  uint32_t index = 0;  // in its block
  Engines engines;
  Fiber fiber;
  bool runnable = false;
  bool finished = false;
  Wait wait;
  uint32_t collective_result = 0;
  MmaOperands mma;
  uint32_t* matrix_words = nullptr;  // of the ldmatrix or stmatrix that it waits in

  Views views;  // views[kSeen].own[kThread] is its clock
  /// `views` at its last fence.acq_rel, which each atomic write behind it releases.
  Views fenced;
  bool has_fenced = false;
  /// `views` at its last release to a word since that fence, which each atomic write to the word
  /// behind it releases as well.
  std::map<const void*, Views> released;
  /// What relaxed atomics have read of each word since that fence: the next fence acquires it all,
  /// and an acquire of a word what was read of it.
  std::map<const void*, GlobalRelease> to_acquire;

  // Copies that it has not waited for, and the numbers of the open groups (the first is 1). The
  // clock of cp.async ticks with each group, and with each mbarrier that is to track the copies.
  std::vector<std::shared_ptr<Transfer>> copies;
  uint32_t cp_async_group = 1;
  uint32_t cp_async_clock = 1;
  uint32_t bulk_group = 1;

  WgmmaThread wgmma;

  uint32_t cluster_barriers = 0;  // phases that it has waited for
  bool cluster_arrived = false;   // in the phase behind those
  SourceLocation cluster_arrival;
};

/// What the lanes of a warp do together.
struct Collective {
  const char* name = "";  // of the instruction
  uint32_t mask = 0;
  uint32_t arrived = 0;
  uint32_t parameter = 0;  // a mode that all lanes share
  SourceLocation at;
  uint32_t values[kWarpSize], operands[kWarpSize], results[kWarpSize];
};

struct Warp {
  uint32_t index = 0;      // in its block
  uint32_t live = 0;       // lanes that have not exited
  uint32_t registers = 0;  // a thread, since the last setmaxnreg; 0: as launched
  Thread* threads[kWarpSize] = {};
  std::vector<Collective> collectives;  // that some lane waits in
};

/// bar.sync's barrier.
struct NamedBarrier {
  /// What a warp has done in this phase.
  struct WarpArrival {
    uint32_t lanes = 0;               // that have arrived
    const Thread* waiting = nullptr;  // the first of those that wait
  };
  uint32_t expected = 0;  // threads; 0 while nobody has arrived
  bool all = false;       // of the whole block: the expected ones are those alive
  std::vector<WarpArrival> warps;
  std::vector<Thread*> waiting;
  SourceLocation at;  // of the first arrival
  ReleaseBuilder released;
};

/// An mbarrier, from init to inval.
struct Mbarrier {
  std::string name;
  uint32_t index = 0;       // its actor's index in the cluster
  uint32_t init_index = 0;  // of the actor that initialised it, which did nothing else
  uint32_t count = 0;       // arrivals a phase
  uint32_t pending = 0;     // arrivals missing in this phase
  int64_t bytes = 0;        // bytes missing in this phase; negative: came before they were expected
  uint32_t phase = 0;       // the number of completed phases
  uint32_t observed = 0;    // completed phases that some thread has waited for
  Record init;
  bool init_published = false;  // to the asynchronous proxy
  SourceLocation last_arrival;
  ReleaseBuilder released;
  ViewClocks completed;  // what was released when the last phase completed
  std::vector<Thread*> waiting;
  std::vector<std::shared_ptr<Transfer>> transfers;  // that will complete on it
  uint32_t last_transfer_phase = 0;                  // 1 + the phase of the newest copy; 0: none
  SourceLocation last_transfer;
};

/// An asynchronous copy that has been issued.
struct Transfer {
  const char* name = "";  // of the instruction
  SourceLocation at;
  std::function<void()> perform;  // moves the bytes, then tells its mbarrier
  bool done = false;
  Engine engine = kThread;  // kCpAsync or kBulkRead: of a thread's group
  uint32_t group = 0;
  uint32_t clock = 0;
  bool tracked = false;  // by an mbarrier that a later instruction has named
  uint32_t phase = 0;    // of its mbarrier, when it was issued
  uint64_t bytes = 0;
};

/// barrier.cluster of one cluster.
struct ClusterBarrier {
  uint32_t phase = 0;    // completed ones
  uint32_t arrived = 0;  // threads that have not exited
  ReleaseBuilder released;
  ViewClocks completed;  // what was released in the last phase
  std::vector<Thread*> waiting;
};

/// Shared memory, byte by byte.
enum class SharedState : uint8_t { unwritten, written, mbarrier };

struct Block {
  Cluster* cluster = nullptr;
  Dim3 position;
  uint32_t rank = 0;  // in its cluster
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<std::unique_ptr<Warp>> warps;
  std::vector<std::unique_ptr<Warpgroup>> warpgroups;  // of four warps each
  uint32_t live_threads = 0;
  std::vector<std::byte> shared;
  std::vector<SharedState> shared_state;
  std::unique_ptr<Shadow> shared_shadow;
  NamedBarrier barriers[kNamedBarriers];
  std::map<uint32_t, std::shared_ptr<Mbarrier>> mbarriers;  // by offset
  // Of a cluster: the newest access of each thread of another block, and what the threads of this
  // one knew when they exited.
  std::map<Actor, Record> remote_accesses;
  ReleaseBuilder known_at_exit;
};

struct Cluster {
  uint32_t index = 0;  // in the grid
  Actor first_actor = 0;
  uint32_t next_actor = 0;                  // index of the next mbarrier's actor
  std::vector<std::string> mbarrier_names;  // of actors, in order
  std::vector<std::unique_ptr<Block>> blocks;
  uint32_t live_threads = 0;
  ClusterBarrier barrier;
};

/// A registered buffer and its shadow.
struct GlobalBuffer {
  Buffer buffer;
  std::unique_ptr<Shadow> shadow;  // none for inputs
  std::vector<bool> written;       // of outputs, by byte
  const std::byte* begin() const { return static_cast<const std::byte*>(buffer.data); }
  const std::byte* end() const { return begin() + buffer.bytes; }
};

class Machine {
 public:
  Machine(const LaunchShape& shape, const std::vector<Buffer>& buffers, const Options& options,
          const std::function<void()>& kernel);
  Report run();

  // --- for instructions ---

  Thread& self() { return *current_; }
  /// Leaves the fiber until `wake`; `wait` says why, for reports.
  void block(Wait wait);
  void wake(Thread& thread);
  /// Lets others run before this thread goes on. A poll that finds nothing is no progress.
  void yield_after_poll(SourceLocation at);
  /// A read, or an atomic operation, which may be one of a loop that waits for another thread: lets
  /// others run now and then, so that they can end it, or that it is found out.
  void note_read(SourceLocation at);
  /// In random order: sometimes lets others run first.
  void maybe_preempt();
  /// Something happened that a polling thread may be waiting for.
  void progress() { idle_polls_ = idle_reads_ = 0; }

  /// Reports a defect, once for the same lines. The run goes on, unless it was the last one
  /// allowed.
  void report(FindingKind kind, std::vector<SourceLocation> lines, std::string text);
  /// Reports a defect that the run cannot go on after; leaves the fiber for good.
  [[noreturn]] void fail(FindingKind kind, std::vector<SourceLocation> lines, std::string text);

  /// Ends the run. From within a fiber it goes on until it blocks.
  void stop() { cancelled_ = true; }

  /// What `record` says, in words: "the write by block (0,0,0) warp 1 lane 3 at kernel.cuh:57".
  std::string describe(const Record& record) const;
  std::string describe(const Thread& thread) const;
  std::string describe(const Block& block) const;

  Accessor accessor(Thread& thread, AccessKind kind, SourceLocation at);
  /// An access by an engine of `thread`, or by an mbarrier's copies.
  Accessor async_accessor(Thread& thread, AccessKind kind, uint32_t actor_index, uint32_t clock,
                          bool async_proxy, SourceLocation at);
  void report_conflict(const Conflict& conflict, const Accessor& accessor,
                       const std::string& where);

  /// Checks an access to global memory, remembers it, and says whether it may be done. With `base`
  /// it is to lie in the same buffer as that.
  bool access_global(const void* p, uint64_t bytes, const Accessor& accessor, const char* name,
                     const void* base = nullptr);
  /// The same for shared memory of the thread's block, by offset from shared_base().
  bool access_shared(Block& block, uint32_t address, uint64_t bytes, const Accessor& accessor,
                     const char* name);
  void check_prefetch(const void* p, uint64_t bytes, SourceLocation at);
  /// Whether the kernel before this one is known to have ended.
  bool previous_kernel_ended(const Accessor& accessor) const;
  uint32_t previous_kernel_index() const { return thread_actors_; }

  void add_transfer(std::shared_ptr<Transfer> transfer);
  /// Moves the bytes now, if they have not been moved.
  void complete(Transfer& transfer);

  ClockPointer join(const ClockPointer& a, const ClockPointer& b) { return joiner_.join(a, b); }
  /// Adds what was released to what the thread knows.
  void acquire(Thread& thread, const ViewClocks& released);
  /// After a release, later accesses of the thread are not covered by it.
  void tick(Thread& thread) { ++thread.views[kSeen].own[kThread]; }

  uint64_t draw(uint64_t below) { return random_() % below; }
  bool random_order() const { return options_.random_order; }
  bool proxy_fences() const { return options_.proxy_fences; }
  /// The run does not go on behind an instruction that the launch's architecture lacks.
  void require(Feature feature, const char* name, SourceLocation at);
  uint64_t seed() const { return options_.seed; }
  const LaunchShape& shape() const { return shape_; }

  /// What the present values of words of global memory have released to who acquires them.
  std::map<const void*, GlobalRelease> released_words;

 private:
  bool check_launch();
  bool can_begin_cluster() const;
  /// Polls in vain, one after the other, that are a deadlock.
  uint64_t max_idle_polls() const;
  void begin_cluster();
  void begin_thread(Thread& thread);
  void run_thread(Thread& thread);
  void finish_thread(Thread& thread);
  void finish_cluster(Cluster& cluster);
  void check_thread_exit(Thread& thread);
  void check_block_exit(Block& block);
  void check_remote_accesses(Block& block);
  Thread* take_runnable();
  void report_deadlock(const char* headline);
  void cancel_all();
  GlobalBuffer* find_buffer(const void* p, uint64_t bytes);
  std::string where_outside(const void* p, uint64_t bytes) const;

  const LaunchShape shape_;
  const Options options_;
  const std::function<void()>& kernel_;
  Report report_;
  std::vector<GlobalBuffer> buffers_;  // by address
  GlobalBuffer* last_buffer_ = nullptr;
  std::mt19937_64 random_;
  ClockJoiner joiner_;

  uint32_t cluster_count_ = 0;
  uint32_t next_cluster_ = 0;
  std::vector<uint32_t> cluster_order_;
  uint32_t thread_actors_ = 0;  // of a cluster
  std::vector<std::unique_ptr<Cluster>> resident_;

  std::deque<Thread*> runnable_;
  std::vector<std::shared_ptr<Transfer>> transfers_;
  Thread* current_ = nullptr;
  uint64_t idle_polls_ = 0;
  uint64_t idle_reads_ = 0;
  bool cancelled_ = false;
};

/// Waits until the lanes of `mask` are all here, at the same instruction and line.
void meet_lanes(const char* name, uint32_t mask, uint32_t parameter, SourceLocation at);

/// Counts bytes that have come, and ends the phase if nothing more is missing.
void complete_bytes(Machine& m, Mbarrier& mbarrier, uint64_t bytes);
/// One arrival that an asynchronous engine makes; it releases the engine's clock.
void complete_arrival(Machine& m, Mbarrier& mbarrier, uint32_t index, uint32_t clock);
/// Finds the mbarrier at a shared address, ready for use by this thread. Fails where there is none.
std::shared_ptr<Mbarrier> use_mbarrier(Machine& m, const Block& block, uint32_t address,
                                       const char* name, SourceLocation at);
uint64_t arrive_mbarrier(Machine& m, const Block& block, uint32_t address, uint32_t count,
                         uint32_t bytes, const char* name, SourceLocation at);
/// Makes this copy one that `mbarrier` waits for.
void attach(Mbarrier& mbarrier, const std::shared_ptr<Transfer>& transfer);

/// The thread exits: its warpgroup's products do without it.
void leave_warpgroup(Machine& m, Thread& thread);
/// The warpgroup's threads that have ended group `group`, by warp: for a deadlock report.
std::string group_text(const Warpgroup& warpgroup, uint32_t group);

/// Block `rank` of the thread's cluster, whose shared memory the thread is to touch. Fails where
/// there is none, where it may not have begun, or where it has exited.
Block& use_block(Machine& m, uint32_t rank, const char* name, SourceLocation at);
/// Remembers what `block` is not to exit before.
void note_remote_access(Block& block, const Record& record);
/// Ends the cluster barrier's phase if all threads that have not exited have arrived.
void try_complete_cluster_barrier(Machine& m, Cluster& cluster);

/// Ends the barrier's phase if all that it waits for have arrived; returns whether it did.
bool try_complete_barrier(Machine& m, Block& block, NamedBarrier& barrier);

/// The machine whose kernel is running on this thread of the operating system. A wrapper that is
/// called outside of a launch ends the program with a message.
Machine& machine();

}  // namespace blockscale::emulator
