#include "device/emulator/report.h"

#include <cstring>
#include <string_view>

namespace blockscale::emulator {

const char* name_of(FindingKind kind) {
  switch (kind) {
    case FindingKind::deadlock: return "deadlock";
    case FindingKind::race: return "race";
    case FindingKind::missing_proxy_fence: return "missing proxy fence";
    case FindingKind::transaction_bytes: return "wrong transaction bytes";
    case FindingKind::out_of_bounds: return "out of bounds";
    case FindingKind::misaligned: return "misaligned";
    case FindingKind::invalid_operand: return "invalid operand";
    case FindingKind::divergent_collective: return "divergent collective";
    case FindingKind::uninitialized_read: return "uninitialized read";
    case FindingKind::write_to_input: return "write to input";
    case FindingKind::outstanding_at_exit: return "outstanding at exit";
    case FindingKind::barrier_misuse: return "barrier misuse";
    case FindingKind::dependent_access: return "access before griddepcontrol.wait";
    case FindingKind::pending_registers: return "access to pending registers";
    case FindingKind::missing_wgmma_fence: return "missing wgmma_fence";
    case FindingKind::block_has_exited: return "block has exited";
    case FindingKind::missing_instruction: return "missing instruction";
    case FindingKind::launch_limits: return "launch limits";
    case FindingKind::broken_assumption: return "broken assumption";
    case FindingKind::exception: return "exception";
  }
  return "unknown";
}

std::string text_of(const SourceLocation& at) {
  std::string_view file = at.file_name();
  if (const auto slash = file.rfind('/'); slash != file.npos && slash > 0) {
    if (const auto folder = file.rfind('/', slash - 1); folder != file.npos) {
      file.remove_prefix(folder + 1);
    }
  }
  return std::string(file) + ":" + std::to_string(at.line());
}

bool same_line(const SourceLocation& a, const SourceLocation& b) {
  return a.line() == b.line() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

std::string Report::text() const {
  if (findings.empty()) return "no findings";
  std::string text;
  for (const Finding& finding : findings) {
    text += std::string(name_of(finding.kind)) + ": " + finding.text + "\n";
  }
  text += random_order ? "schedule: random, seed " + std::to_string(seed) : "schedule: in order";
  return text;
}

bool Report::has(FindingKind kind, const char* file, uint32_t line) const {
  for (const Finding& finding : findings) {
    if (finding.kind != kind) continue;
    for (const SourceLocation& at : finding.lines) {
      if (at.line() == line && std::string_view(at.file_name()).ends_with(file)) return true;
    }
  }
  return false;
}

}  // namespace blockscale::emulator
