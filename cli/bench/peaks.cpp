// blockscale bench peaks: what bounds products on this CPU.
#include <memory>
#include <string>

#include "arguments.h"
#include "bench.h"
#include "blockscale/bench.h"
#include "blockscale/system.h"
#include "text.h"
#include "units.h"

namespace blockscale::cli {

Json peaks_json(const CpuPeaks& peaks) {
  Json json = {{"threads", peaks.threads}, {"read_bytes_per_second", peaks.read_bytes_per_second}};
  for (int i = 0; i < kMultiplierCount; ++i) {
    json[kMultiplierNames[i]] = peaks.operations_per_second[i];
  }
  return json;
}

namespace {

struct BenchPeaks {
  int threads = 1;
  int repeats = 5;
  BenchOutput output;
};

ExitCode run_peaks(const BenchPeaks& command) {
  const CpuPeaks peaks = measure_cpu_peaks(command.threads, command.repeats);
  Json json = peaks_json(peaks);
  json["simd_target"] = simd_target();
  std::string text = plural(peaks.threads, "thread") + ", " + simd_target() + ": reads " +
                     format_rate(peaks.read_bytes_per_second) + " GB/s";
  for (int i = 0; i < kMultiplierCount; ++i) {
    if (peaks.operations_per_second[i] == 0) continue;
    text += "; multiplies " + std::string(kMultiplierNames[i]) + " at " +
            format_fixed(peaks.operations_per_second[i] * 1e-9, 0) + " Gop/s";
  }
  return print_result(json, text + "\n", command.output);
}

constexpr const char* kPeaksExamples = R"help(Examples:
  One thread, then all of them:
    blockscale bench peaks
    blockscale bench peaks --threads 0
)help";

}  // namespace

void add_peaks(CLI::App& bench, Action& action) {
  const auto state = std::make_shared<BenchPeaks>();
  CLI::App* const command = bench.add_subcommand(
      "peaks", "Rates of reading memory and of multiply-adds, which bound products");
  add_parsed(*command, "--repeats", "N", state->repeats, parse_repeats,
             "Timed runs of each, of which the fastest counts. Default: 5");
  add_threads(*command, state->threads, 1);
  add_output(*command, state->output);
  command->footer(kPeaksExamples);
  command->callback([&action, state] { action = [state] { return run_peaks(*state); }; });
}

}  // namespace blockscale::cli
