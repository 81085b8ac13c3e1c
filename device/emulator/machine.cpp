// Launching: checks of the launch, admission of clusters, and the scheduler.
#include "device/emulator/machine.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <utility>

namespace blockscale::emulator {
namespace {

thread_local Machine* running_machine = nullptr;

}  // namespace

Machine& machine() {
  if (running_machine == nullptr) {
    std::fputs("an instruction of device/ptx was called outside of emulator::launch\n", stderr);
    std::abort();
  }
  return *running_machine;
}

const Identity& identity() {
  return machine().self().identity;
}

void assume(bool condition, const char* text, SourceLocation at) {
  if (condition) return;
  Machine& m = machine();
  m.fail(FindingKind::broken_assumption, {at},
         m.describe(m.self()) + " at " + text_of(at) + " assumes (" + text + "), which is false");
}

Report launch(const LaunchShape& shape, const std::vector<Buffer>& buffers, const Options& options,
              const std::function<void()>& kernel) {
  return Machine(shape, buffers, options, kernel).run();
}

Machine::Machine(const LaunchShape& shape, const std::vector<Buffer>& buffers,
                 const Options& options, const std::function<void()>& kernel)
    : shape_(shape), options_(options), kernel_(kernel), random_(options.seed) {
  report_.seed = options.seed;
  report_.random_order = options.random_order;
  for (const Buffer& buffer : buffers) {
    GlobalBuffer& added = buffers_.emplace_back();
    added.buffer = buffer;
    if (buffer.use != BufferUse::input) added.shadow = std::make_unique<Shadow>(buffer.bytes + 4);
    if (buffer.use == BufferUse::output) added.written.resize(buffer.bytes);
  }
  std::sort(buffers_.begin(), buffers_.end(),
            [](const GlobalBuffer& a, const GlobalBuffer& b) { return a.begin() < b.begin(); });
}

bool Machine::check_launch() {
  const auto limit = [this](const std::string& text) {
    report(FindingKind::launch_limits, {}, text);
    return false;
  };
  const uint64_t threads = product(shape_.block), cluster = product(shape_.cluster);
  const auto text_of = [](const Dim3& d) {
    return "(" + std::to_string(d.x) + "," + std::to_string(d.y) + "," + std::to_string(d.z) + ")";
  };
  if (threads == 0 || threads > 1024) {
    return limit("a block of " + text_of(shape_.block) + " threads; 1 to 1024 are allowed");
  }
  if (shape_.block.z > 64) {
    return limit("a block of " + text_of(shape_.block) + " threads; z is at most 64");
  }
  if (threads % kWarpSize != 0) {
    return limit("a block of " + std::to_string(threads) +
                 " threads; the emulator asks for whole warps of 32");
  }
  const uint32_t most_shared = max_shared_bytes(options_.architecture);
  if (shape_.dynamic_shared_bytes > most_shared) {
    return limit(std::to_string(shape_.dynamic_shared_bytes) + " bytes of shared memory; a block " +
                 "has at most " + std::to_string(most_shared) + " on " +
                 name_of(options_.architecture));
  }
  const uint32_t most_blocks = max_cluster_blocks(options_.architecture);
  if (cluster == 0 || cluster > most_blocks) {
    return limit("a cluster of " + text_of(shape_.cluster) +
                 " blocks; the emulator asks for a portable size, 1 to " +
                 std::to_string(most_blocks) + " on " + name_of(options_.architecture));
  }
  if (product(shape_.grid) == 0 || shape_.grid.x % shape_.cluster.x != 0 ||
      shape_.grid.y % shape_.cluster.y != 0 || shape_.grid.z % shape_.cluster.z != 0) {
    return limit("a grid of " + text_of(shape_.grid) +
                 " blocks, which is no positive multiple of " + "its cluster " +
                 text_of(shape_.cluster));
  }
  if (shape_.grid.y > 65535 || shape_.grid.z > 65535) {
    return limit("a grid of " + text_of(shape_.grid) + "; y and z are at most 65535");
  }
  if (product(shape_.grid) / cluster >= (1u << (32 - kActorBits)) - 1) {
    return limit("a grid of " + text_of(shape_.grid) + " blocks is more than the emulator numbers");
  }
  return true;
}

void Machine::require(Feature feature, const char* name, SourceLocation at) {
  if (has(options_.architecture, feature)) return;
  fail(FindingKind::missing_instruction, {at},
       describe(self()) + " at " + text_of(at) + " issues " + name + ", which kernels for " +
           name_of(options_.architecture) + " do not have; those for " + owners_of(feature) +
           " do");
}

void require(Feature feature, const char* name, SourceLocation at) {
  if (running_machine != nullptr) running_machine->require(feature, name, at);
}

Report Machine::run() {
  if (!check_launch()) return std::move(report_);
  cluster_count_ = static_cast<uint32_t>(product(shape_.grid) / product(shape_.cluster));
  cluster_order_.resize(cluster_count_);
  std::iota(cluster_order_.begin(), cluster_order_.end(), 0u);
  if (options_.random_order) std::shuffle(cluster_order_.begin(), cluster_order_.end(), random_);
  thread_actors_ =
      static_cast<uint32_t>(kEngines * product(shape_.block) * product(shape_.cluster));

  Machine* const outer = std::exchange(running_machine, this);
  while (!cancelled_) {
    while (resident_.size() < options_.resident_clusters && can_begin_cluster()) begin_cluster();
    if (resident_.empty()) break;
    // A copy completes instead of a thread's turn: at random, or in order when nobody can run, or
    // all who can have polled in vain. Clusters begin, and deadlocks are reported, only after many
    // polls.
    const bool stuck = runnable_.empty() || idle_polls_ > max_idle_polls() / 2;
    const auto is_turn_of_copy = [&] {
      if (!options_.random_order) return idle_polls_ > runnable_.size();
      return draw(runnable_.size() + transfers_.size()) >= runnable_.size();
    };
    const bool copy_next = !transfers_.empty() && (stuck || is_turn_of_copy());
    if (copy_next) {
      const std::size_t i = options_.random_order ? draw(transfers_.size()) : 0;
      complete(*std::shared_ptr<Transfer>(transfers_[i]));
    } else if (stuck && can_begin_cluster() && resident_.size() < options_.max_resident_clusters) {
      begin_cluster();
    } else if (runnable_.empty()) {
      report_deadlock("no thread can run");
    } else if (idle_polls_ > max_idle_polls()) {
      report_deadlock("threads poll for what nobody does");
    } else {
      run_thread(*take_runnable());
    }
  }
  cancel_all();
  running_machine = outer;
  return std::move(report_);
}

uint64_t Machine::max_idle_polls() const {
  // All threads may read a word of their own that way, a few hundred times, without any polling.
  return 20000 + 500 * resident_.size() * (thread_actors_ / kEngines);
}

bool Machine::can_begin_cluster() const {
  return next_cluster_ < cluster_count_;
}

void Machine::begin_cluster() {
  auto cluster = std::make_unique<Cluster>();
  cluster->index = cluster_order_[next_cluster_++];
  cluster->first_actor = 1 + (cluster->index << kActorBits);
  cluster->next_actor = thread_actors_ + 1;
  const Dim3 c = shape_.cluster;
  const Dim3 clusters = {shape_.grid.x / c.x, shape_.grid.y / c.y, shape_.grid.z / c.z};
  const Dim3 origin = {cluster->index % clusters.x * c.x,
                       cluster->index / clusters.x % clusters.y * c.y,
                       cluster->index / clusters.x / clusters.y * c.z};
  const uint32_t blocks = static_cast<uint32_t>(product(c));
  const uint32_t threads = static_cast<uint32_t>(product(shape_.block));
  for (uint32_t rank = 0; rank < blocks; ++rank) {
    auto block = std::make_unique<Block>();
    block->cluster = cluster.get();
    block->rank = rank;
    block->position = {origin.x + rank % c.x, origin.y + rank / c.x % c.y,
                       origin.z + rank / c.x / c.y};
    block->shared.resize(shape_.dynamic_shared_bytes);
    // What shared memory holds at first is not said: a pattern that is no likely right answer.
    std::fill(block->shared.begin(), block->shared.end(), std::byte{0xA5});
    block->shared_state.resize(shape_.dynamic_shared_bytes);
    block->shared_shadow = std::make_unique<Shadow>(shape_.dynamic_shared_bytes);
    for (uint32_t i = 0; i < threads; ++i) {
      if (i % kWarpSize == 0) {
        block->warps.push_back(std::make_unique<Warp>());
        block->warps.back()->index = i / kWarpSize;
      }
      Warp& warp = *block->warps.back();
      auto thread = std::make_unique<Thread>();
      const Dim3 b = shape_.block, g = shape_.grid, p = block->position;
      thread->identity = {i % b.x, i / b.x % b.y, i / b.x / b.y, b.x,  b.y,
                          b.z,     p.x,           p.y,           p.z,  g.x,
                          g.y,     g.z,           i % kWarpSize, rank, blocks};
      thread->cluster = cluster.get();
      thread->block = block.get();
      thread->warp = &warp;
      thread->index = i;
      const uint32_t first = kEngines * (rank * threads + i);
      const uint32_t leader = i / meaning::kWgmmaThreads * meaning::kWgmmaThreads;
      thread->engines = {first, kEngines * (rank * threads + leader) + kWgmma};
      thread->views[kSeen].own[kThread] = 1;
      warp.threads[i % kWarpSize] = thread.get();
      warp.live |= 1u << (i % kWarpSize);
      begin_thread(*thread);
      block->threads.push_back(std::move(thread));
    }
    for (uint32_t i = 0; i < threads / meaning::kWgmmaThreads; ++i) {
      block->warpgroups.push_back(std::make_unique<Warpgroup>());
      block->warpgroups.back()->index = i;
    }
    block->live_threads = threads;
    cluster->live_threads += threads;
    for (NamedBarrier& barrier : block->barriers) barrier.warps.resize(block->warps.size());
    cluster->blocks.push_back(std::move(block));
  }
  resident_.push_back(std::move(cluster));
}

void Machine::begin_thread(Thread& thread) {
  thread.fiber.start([this, &thread] {
    try {
      kernel_();
      finish_thread(thread);
    } catch (const std::exception& error) {
      report(FindingKind::exception, {}, describe(thread) + " threw: " + error.what());
      cancelled_ = true;
    }
  });
  thread.runnable = true;
  runnable_.push_back(&thread);
}

Thread* Machine::take_runnable() {
  if (options_.random_order && runnable_.size() > 1) {
    std::swap(runnable_[draw(runnable_.size())], runnable_.front());
  }
  Thread* thread = runnable_.front();
  runnable_.pop_front();
  return thread;
}

void Machine::run_thread(Thread& thread) {
  thread.runnable = false;
  current_ = &thread;
  thread.fiber.resume();
  current_ = nullptr;
  if (!thread.finished) return;
  Cluster& cluster = *thread.cluster;
  if (cluster.live_threads == 0) finish_cluster(cluster);
}

void Machine::finish_cluster(Cluster& cluster) {
  for (const auto& block : cluster.blocks) {
    check_block_exit(*block);
    for (const auto& thread : block->threads) {
      for (const auto& copy : thread->copies) complete(*copy);
    }
    for (const auto& [offset, mbarrier] : block->mbarriers) {
      const auto transfers = mbarrier->transfers;  // completion removes them
      for (const auto& transfer : transfers) complete(*transfer);
    }
  }
  std::erase_if(resident_, [&](const auto& other) { return other.get() == &cluster; });
}

void Machine::block(Wait wait) {
  Thread& thread = self();
  thread.wait = std::move(wait);
  thread.fiber.suspend();
  thread.wait = {};
}

void Machine::wake(Thread& thread) {
  if (thread.runnable || &thread == current_) return;
  thread.runnable = true;
  runnable_.push_back(&thread);
}

void Machine::yield_after_poll(SourceLocation at) {
  ++idle_polls_;
  Thread& thread = self();
  thread.runnable = true;
  runnable_.push_back(&thread);
  Wait wait;
  wait.what = Wait::For::poll;
  wait.at = at;
  block(std::move(wait));
}

void Machine::note_read(SourceLocation at) {
  constexpr uint64_t kReadsOfAPoll = 16;
  constexpr uint64_t kPollsOfATurn = 256;
  if (++idle_reads_ < kReadsOfAPoll * kPollsOfATurn) return;
  idle_reads_ = 0;
  idle_polls_ += kPollsOfATurn - 1;
  yield_after_poll(at);
}

void Machine::maybe_preempt() {
  if (!options_.random_order || draw(8) != 0) return;
  Thread& thread = self();
  thread.runnable = true;
  runnable_.push_back(&thread);
  block({});
}

void Machine::report(FindingKind kind, std::vector<SourceLocation> lines, std::string text) {
  for (const Finding& known : report_.findings) {
    if (known.kind == kind && known.lines.size() == lines.size() &&
        std::equal(lines.begin(), lines.end(), known.lines.begin(), same_line)) {
      return;
    }
  }
  if (report_.findings.size() >= options_.max_findings) return;
  report_.findings.push_back({kind, std::move(lines), std::move(text)});
  if (report_.findings.size() >= options_.max_findings) cancelled_ = true;
}

void Machine::fail(FindingKind kind, std::vector<SourceLocation> lines, std::string text) {
  report(kind, std::move(lines), std::move(text));
  cancelled_ = true;
  throw Cancelled{};
}

void Machine::cancel_all() {
  for (const auto& cluster : resident_) {
    for (const auto& block : cluster->blocks) {
      for (const auto& thread : block->threads) {
        current_ = thread.get();
        if (!thread->fiber.finished()) thread->fiber.cancel();
      }
    }
  }
  current_ = nullptr;
  for (const auto& transfer : transfers_) transfer->perform = nullptr;  // it holds its mbarrier
  transfers_.clear();
  resident_.clear();
}

}  // namespace blockscale::emulator
