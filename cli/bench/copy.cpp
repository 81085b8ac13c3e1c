// blockscale bench copy: what memory gives.
#include <memory>
#include <string>
#include <utility>

#include "arguments.h"
#include "bench.h"
#include "blockscale/bench.h"
#include "blockscale/parallel.h"
#include "text.h"
#include "units.h"

namespace blockscale::cli {
namespace {

struct BenchCopy {
  std::uint64_t bytes = std::uint64_t{128} << 20;
  int threads = 1;
  int repeats = 5;
  BenchOutput output;
};

ExitCode run_copy(const BenchCopy& command) {
  const double rate =
      benchmark_copy(static_cast<std::int64_t>(command.bytes), command.threads, command.repeats);
  const int threads = effective_threads(command.threads);
  return print_result({{"bytes", command.bytes}, {"threads", threads}, {"bytes_per_second", rate}},
                      "memcpy of " + format_bytes(static_cast<double>(command.bytes)) + " on " +
                          plural(threads, "thread") + ": " + format_rate(rate) +
                          " GB/s read + written\n",
                      command.output);
}

constexpr const char* kCopyExamples = R"help(Examples:
  What one thread copies, to compare other rates with:
    blockscale bench copy

  What the memory of this machine gives:
    blockscale bench copy --size 1GiB --threads 0
)help";

}  // namespace

void add_copy(CLI::App& bench, Action& action) {
  const auto state = std::make_shared<BenchCopy>();
  CLI::App* const command =
      bench.add_subcommand("copy", "Rate of memcpy, which bounds all that reads and writes");
  const auto parse_copy_bytes = [](const std::string& text) {
    const std::uint64_t bytes = parse_bytes(text);
    if (bytes > std::uint64_t{1} << 40) {
      throw ParseError("'" + text + "' is out of range; at most 1TiB is allowed");
    }
    return bytes;
  };
  add_parsed(*command, "--size", "SIZE", state->bytes, parse_copy_bytes,
             "Bytes to copy, such as 128MiB, the default");
  add_parsed(*command, "--repeats", "N", state->repeats, parse_repeats,
             "Timed runs, of which the fastest counts. Default: 5");
  add_threads(*command, state->threads, 1);
  add_output(*command, state->output);
  command->footer(kCopyExamples);
  command->callback([&action, state] { action = [state] { return run_copy(*state); }; });
}

}  // namespace blockscale::cli
