// Checked access to global and shared memory: bounds, alignment, initialisation and races.
#include <algorithm>
#include <utility>

#include "device/emulator/machine.h"

namespace blockscale::emulator {
namespace {

std::string plural(uint64_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

const char* verb(AccessKind kind) {
  switch (kind) {
    case AccessKind::read: return "read";
    case AccessKind::read_nc: return "ld_global_nc";
    case AccessKind::write: return "write";
    case AccessKind::atomic_load: return "atomic load";
    case AccessKind::atomic_store: return "atomic store";
    case AccessKind::atomic_update: return "atomic operation";
  }
  return "access";
}

}  // namespace

std::string Machine::describe(const Block& block) const {
  const Dim3& p = block.position;
  return "block (" + std::to_string(p.x) + "," + std::to_string(p.y) + "," + std::to_string(p.z) +
         ")";
}

std::string Machine::describe(const Thread& thread) const {
  return describe(*thread.block) + " warp " + std::to_string(thread.warp->index) + " lane " +
         std::to_string(thread.index % kWarpSize);
}

std::string Machine::describe(const Record& record) const {
  const uint32_t cluster = (record.actor - 1) >> kActorBits;
  const uint32_t index = (record.actor - 1) & ((1u << kActorBits) - 1);
  const std::string what = std::string("the ") + verb(record.kind) + " at " + text_of(record.at);
  if (index > thread_actors_) {
    for (const auto& resident : resident_) {
      if (resident->index != cluster) continue;
      return what + " by a bulk copy that completes on mbarrier '" +
             resident->mbarrier_names[index - thread_actors_ - 1] + "'";
    }
    return what + " by a bulk copy of another cluster";
  }
  static constexpr const char* kBy[kEngines] = {
      "", "cp.async of ", "a bulk store of ", "a bulk store of ", "a product of the warpgroup of "};
  const uint32_t threads = static_cast<uint32_t>(product(shape_.block));
  const uint32_t thread = index / kEngines % threads, rank = index / kEngines / threads;
  const uint32_t engine = index % kEngines, warp = thread / kWarpSize;
  const Dim3 c = shape_.cluster;
  const uint32_t across = shape_.grid.x / c.x, down = shape_.grid.y / c.y;
  return what + " by " + kBy[engine] + "block (" +
         std::to_string(cluster % across * c.x + rank % c.x) + "," +
         std::to_string(cluster / across % down * c.y + rank / c.x % c.y) + "," +
         std::to_string(cluster / across / down * c.z + rank / c.x / c.y) + ") " +
         (engine == kWgmma
              ? "warps " + std::to_string(warp) + " to " + std::to_string(warp + 3)
              : "warp " + std::to_string(warp) + " lane " + std::to_string(thread % kWarpSize));
}

Accessor Machine::accessor(Thread& thread, AccessKind kind, SourceLocation at) {
  const Actor first = thread.cluster->first_actor + thread.engines.first;
  const Record record = {first, thread.views[kSeen].own[kThread], at, kind, false};
  const Actor cluster = thread.cluster->first_actor;
  return {record, &thread.views, kPublishedShared, first, cluster + thread.engines.wgmma, cluster};
}

Accessor Machine::async_accessor(Thread& thread, AccessKind kind, uint32_t actor_index,
                                 uint32_t clock, bool async_proxy, SourceLocation at) {
  Accessor result = accessor(thread, kind, at);
  result.record.actor = thread.cluster->first_actor + actor_index;
  result.record.clock = clock;
  result.record.async = async_proxy;
  return result;
}

void Machine::report_conflict(const Conflict& conflict, const Accessor& accessor,
                              const std::string& where) {
  const Record& now = accessor.record;
  const std::string both = describe(now) + " of " + where;
  const std::string earlier = describe(conflict.earlier);
  const std::vector<SourceLocation> lines = {now.at, conflict.earlier.at};
  switch (conflict.why) {
    case Conflict::Why::unordered:
      return report(FindingKind::race, lines,
                    both + " is not ordered after " + earlier +
                        ": no barrier, fence or wait between the two");
    case Conflict::Why::unpublished:
      return report(FindingKind::missing_proxy_fence, lines,
                    both + " belongs to the asynchronous proxy and need not see " + earlier +
                        ": no fence_proxy_async between the two, on the way that orders them");
    case Conflict::Why::noncoherent:
      return report(FindingKind::race, lines,
                    both +
                        (now.kind == AccessKind::read_nc
                             ? " goes past the coherent caches and need not see "
                             : " changes what is read past the coherent caches, whatever orders it "
                               "after ") +
                        earlier +
                        ": ld_global_nc is for memory that nobody writes while the kernel runs");
  }
}

GlobalBuffer* Machine::find_buffer(const void* p, uint64_t bytes) {
  const auto* first = static_cast<const std::byte*>(p);
  const auto holds = [&](const GlobalBuffer& b) {
    return first >= b.begin() && first < b.end() && bytes <= static_cast<uint64_t>(b.end() - first);
  };
  if (last_buffer_ != nullptr && holds(*last_buffer_)) return last_buffer_;
  for (GlobalBuffer& buffer : buffers_) {
    if (holds(buffer)) return last_buffer_ = &buffer;
  }
  return nullptr;
}

std::string Machine::where_outside(const void* p, uint64_t bytes) const {
  const auto* first = static_cast<const std::byte*>(p);
  const GlobalBuffer* nearest = nullptr;
  uint64_t distance = 1 << 20;  // beyond that the pointer says nothing about the buffer
  for (const GlobalBuffer& buffer : buffers_) {
    const auto away = [](const std::byte* a, const std::byte* b) {
      return static_cast<uint64_t>(a < b ? b - a : a - b);
    };
    const bool inside = first >= buffer.begin() && first < buffer.end();
    const uint64_t d =
        inside ? 0 : std::min(away(first, buffer.begin()), away(first, buffer.end()));
    if (d >= distance) continue;
    distance = d;
    nearest = &buffer;
  }
  if (nearest == nullptr) return plural(bytes, "byte") + " of memory that is not registered";
  const std::string name =
      "'" + nearest->buffer.name + "' (" + plural(nearest->buffer.bytes, "byte") + ")";
  if (first < nearest->begin()) {
    return plural(bytes, "byte") + " that begin " + std::to_string(nearest->begin() - first) +
           " before " + name;
  }
  return plural(bytes, "byte") + " at offset " + std::to_string(first - nearest->begin()) + " of " +
         name;
}

bool Machine::previous_kernel_ended(const Accessor& accessor) const {
  return knows(accessor, (*accessor.views)[kSeen], accessor.cluster_first + previous_kernel_index(),
               1);
}

bool Machine::access_global(const void* p, uint64_t bytes, const Accessor& accessor,
                            const char* name, const void* base) {
  const Record& now = accessor.record;
  GlobalBuffer* buffer = find_buffer(p, bytes);
  if (buffer == nullptr || (base != nullptr && find_buffer(base, 1) != buffer)) {
    report(FindingKind::out_of_bounds, {now.at},
           std::string(name) + " at " + text_of(now.at) + " by " + describe(self()) + " touches " +
               where_outside(p, bytes));
    return false;
  }
  const uint64_t offset = static_cast<uint64_t>(static_cast<const std::byte*>(p) - buffer->begin());
  const auto where = [&](uint64_t at) {
    return "offset " + std::to_string(at) + " of '" + buffer->buffer.name + "'";
  };
  if (shape_.programmatic_dependent_launch && buffer->buffer.dependent &&
      !previous_kernel_ended(accessor)) {
    report(FindingKind::dependent_access, {now.at},
           std::string(name) + " at " + text_of(now.at) + " by " + describe(self()) + " touches " +
               where(offset) + ", which the kernel before may still use: no griddepcontrol_wait " +
               "happens before it");
  }
  if (writes(now.kind) && buffer->buffer.use == BufferUse::input) {
    report(FindingKind::write_to_input, {now.at},
           std::string(name) + " at " + text_of(now.at) + " by " + describe(self()) + " writes " +
               where(offset) + ", which is registered as input");
    return false;
  }
  if (buffer->buffer.use == BufferUse::output) {
    for (uint64_t i = offset; reads(now.kind) && i < offset + bytes; ++i) {
      if (buffer->written[i]) continue;
      report(FindingKind::uninitialized_read, {now.at},
             std::string(name) + " at " + text_of(now.at) + " by " + describe(self()) + " reads " +
                 where(i) + ", which nobody has written");
      break;
    }
    if (writes(now.kind)) {
      std::fill_n(buffer->written.begin() + static_cast<std::ptrdiff_t>(offset), bytes, true);
    }
  }
  if (buffer->shadow != nullptr) {
    // Cells are of aligned words, of whatever alignment the buffer is.
    const std::size_t skew = reinterpret_cast<std::uintptr_t>(buffer->buffer.data) % 4;
    Accessor global = accessor;
    global.published = kPublishedGlobal;
    const auto conflict = buffer->shadow->access(offset + skew, bytes, global);
    if (conflict) report_conflict(*conflict, accessor, where(conflict->offset - skew));
  }
  return true;
}

void Machine::check_prefetch(const void* p, uint64_t bytes, SourceLocation at) {
  if (find_buffer(p, bytes) != nullptr) return;
  report(FindingKind::out_of_bounds, {at},
         "the prefetch at " + text_of(at) + " by " + describe(self()) + " touches " +
             where_outside(p, bytes));
}

bool Machine::access_shared(Block& block, uint32_t address, uint64_t bytes,
                            const Accessor& accessor, const char* name) {
  const Record& now = accessor.record;
  const uint64_t size = block.shared.size();
  const uint64_t offset = uint64_t{address} - kSharedBase;  // wraps where the address is too low
  // In a cluster it says whose shared memory.
  const auto of = [&] {
    return block.cluster->blocks.size() == 1 ? std::string() : " of " + describe(block);
  };
  if (offset > size || bytes > size - offset) {
    report(FindingKind::out_of_bounds, {now.at},
           std::string(name) + " at " + text_of(now.at) + " by " + describe(self()) + " touches " +
               plural(bytes, "byte") + " at offset " +
               std::to_string(static_cast<int64_t>(address) - kSharedBase) + " of shared memory" +
               of() + ", of which the launch gives " + plural(size, "byte"));
    return false;
  }
  const auto where = [&](uint64_t at) {
    return "shared memory" + of() + " at offset " + std::to_string(at);
  };
  for (uint64_t i = offset; i < offset + bytes; ++i) {
    SharedState& state = block.shared_state[i];
    if (state == SharedState::mbarrier) {
      report(FindingKind::barrier_misuse, {now.at},
             std::string(name) + " at " + text_of(now.at) + " by " + describe(self()) +
                 " touches " + where(i) + ", where an mbarrier lies: mbarrier_inval it first");
      return false;
    }
    if (!reads(now.kind)) {
      state = SharedState::written;
    } else if (state == SharedState::unwritten) {
      report(FindingKind::uninitialized_read, {now.at},
             std::string(name) + " at " + text_of(now.at) + " by " + describe(self()) + " reads " +
                 where(i) + ", which nobody has written");
      break;
    }
  }
  const auto conflict = block.shared_shadow->access(offset, bytes, accessor);
  if (conflict) report_conflict(*conflict, accessor, where(conflict->offset));
  return true;
}

void Machine::acquire(Thread& thread, const ViewClocks& released) {
  for (uint32_t view = 0; view < kViews; ++view) {
    thread.views[view].base = joiner_.join(thread.views[view].base, released[view]);
  }
}

}  // namespace blockscale::emulator
