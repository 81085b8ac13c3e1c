// What the asynchronous copies share. Internal to the emulator.
#pragma once

#include <memory>
#include <string>

#include "device/emulator/machine.h"

namespace blockscale::emulator {

/// "cp_async_cg at kernel.cuh:12 by block (0,0,0) warp 0 lane 3".
std::string by_whom(Machine& m, const char* name, SourceLocation at);

/// Reports unless `value` is a multiple of `unit`.
bool check_multiple(Machine& m, uint64_t value, uint32_t unit, const char* what, const char* name,
                    SourceLocation at);

/// The mbarrier that a bulk load completes on: one whose initialisation the asynchronous proxy
/// sees.
std::shared_ptr<Mbarrier> use_mbarrier_async(Machine& m, const Block& block, uint32_t address,
                                             const char* name, SourceLocation at);

/// An access of the copy that will complete on `mbarrier` in its current phase.
Accessor load_accessor(Machine& m, const Mbarrier& mbarrier, AccessKind kind, SourceLocation at);
/// An access of a bulk store of the thread's open group.
Accessor store_accessor(Machine& m, AccessKind kind, SourceLocation at);

/// Issues a copy of `bytes` that `move` performs and that completes on `mbarrier`.
void issue_load(Machine& m, const std::shared_ptr<Mbarrier>& mbarrier, uint64_t bytes,
                const char* name, SourceLocation at, std::function<void()> move);
/// Issues a copy of the thread's open bulk group.
void issue_store(Machine& m, uint64_t bytes, const char* name, SourceLocation at,
                 std::function<void()> move);

}  // namespace blockscale::emulator
