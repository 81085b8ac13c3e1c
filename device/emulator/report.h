// What a checked run found.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/kernel.h"

namespace blockscale::emulator {

enum class FindingKind : uint8_t {
  deadlock,              // nobody can run, or everybody polls in vain
  race,                  // two accesses, one a write, and neither happens before the other; or an
                         // ld.global.nc of what the kernel writes
  missing_proxy_fence,   // ordered, but the asynchronous proxy need not see the earlier one
  transaction_bytes,     // an mbarrier's expected bytes are not those of its copies
  out_of_bounds,         // of shared memory, a registered buffer or a tensor map's tensor
  misaligned,            // an address or size that the instruction does not take
  invalid_operand,       // a tensor map, rank or type that the instruction does not take
  divergent_collective,  // lanes of a warp at different collectives, or a lane named that is not
                         // there
  uninitialized_read,    // shared memory or an output, read before anybody wrote it
  write_to_input,        // a store to a buffer that was registered as input
  outstanding_at_exit,   // asynchronous work that nobody has waited for
  barrier_misuse,        // a count, an id or a use of a barrier that the instruction does not take
  dependent_access,      // memory of the previous kernel touched before griddepcontrol.wait
  pending_registers,     // an accumulator, or A's registers, touched before the product's wait
  missing_wgmma_fence,   // registers that a product uses, touched with no wgmma_fence before it
  block_has_exited,      // shared memory of another block, touched when that may have exited
  missing_instruction,   // one that the launch's architecture lacks
  launch_limits,         // a launch that the device would refuse, or of a shape that it would take
                         // but the emulator does not; the text says which
  broken_assumption,     // BLOCKSCALE_ASSUME of something false
  exception,             // the kernel threw
};
const char* name_of(FindingKind kind);

/// One defect, with the lines of the kernel that it involves; `lines` is not empty but where no
/// line is to blame (launch_limits), and the first is where it showed.
struct Finding {
  FindingKind kind;
  std::vector<SourceLocation> lines;
  std::string text;  // one sentence or more: who, where, what, and what would be right
};

struct Report {
  std::vector<Finding> findings;  // each defect once, in the order in which they showed
  uint64_t seed = 0;              // of the schedule
  bool random_order = false;

  bool ok() const { return findings.empty(); }
  /// All findings, one a paragraph; "no findings" where there are none.
  std::string text() const;
  /// Whether a finding of this kind involves line `line` of the file whose name ends in `file`.
  bool has(FindingKind kind, const char* file, uint32_t line) const;
};

/// "quantize/kernel_sm90.cuh:57".
std::string text_of(const SourceLocation& at);
bool same_line(const SourceLocation& a, const SourceLocation& b);

}  // namespace blockscale::emulator
