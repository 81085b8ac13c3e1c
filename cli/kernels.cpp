// blockscale kernels: what is compiled for GPUs, and compiling it.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "arguments.h"
#include "blockscale/kernels.h"
#include "command.h"
#include "output.h"
#include "table.h"
#include "text.h"
#include "units.h"

namespace blockscale::cli {
namespace {

// --- kernels, kernels list
// -------------------------------------------------------------------------

Json pack_json(const KernelPackInfo& pack) {
  return {{"architecture", pack.architecture},
          {"path", pack.path.string()},
          {"kernels", pack.kernels},
          {"bytes", pack.bytes},
          {"problem", pack.problem}};
}

Json packs_json(const std::vector<KernelPackInfo>& packs) {
  Json list = Json::array();
  for (const KernelPackInfo& pack : packs) list.push_back(pack_json(pack));
  return list;
}

Json kernel_json(const KernelInfo& kernel) {
  return {{"name", kernel.name},
          {"architecture", kernel.architecture},
          {"emulated_only", is_emulated_only(kernel.architecture)},
          {"state", kernel_state_name(kernel.state)},
          {"registers", kernel.registers},
          {"spill_bytes", kernel.spill_bytes},
          {"stack_bytes", kernel.stack_bytes},
          {"static_shared_bytes", kernel.static_shared_bytes},
          {"code_bytes", kernel.code_bytes},
          {"compiler", kernel.compiler},
          {"flags", kernel.flags},
          {"source_hash", kernel.source_hash}};
}

Json entry_json(const CacheEntryInfo& entry) {
  return {{"path", entry.path.string()},
          {"state", cache_entry_state_name(entry.state)},
          {"bytes", entry.bytes},
          {"problem", entry.problem},
          {"name", entry.name},
          {"architecture", entry.architecture},
          {"compiler", entry.compiler},
          {"flags", entry.flags},
          {"source_hash", entry.source_hash}};
}

std::size_t whole_entries(const KernelListing& listing) {
  return static_cast<std::size_t>(
      std::count_if(listing.cache_entries.begin(), listing.cache_entries.end(),
                    [](const auto& entry) { return entry.state != CacheEntryState::damaged; }));
}

Json listing_json(const KernelListing& listing) {
  Json kernels = Json::array();
  Json entries = Json::array();
  for (const CacheEntryInfo& entry : listing.cache_entries) entries.push_back(entry_json(entry));
  for (const KernelInfo& kernel : listing.kernels) kernels.push_back(kernel_json(kernel));
  return {{"kernels", kernels},
          {"packs", packs_json(listing.packs)},
          {"cache",
           {{"path", listing.cache.string()},
            {"problem", listing.cache_problem},
            {"kernels", whole_entries(listing)},
            {"bytes", listing.cache_bytes},
            {"limit_bytes", listing.cache_limit_bytes},
            {"entries", entries}}}};
}

std::string pack_text(const KernelPackInfo& pack) {
  if (!pack.problem.empty()) return pack.problem;
  if (pack.path.empty()) return "none; `blockscale kernels build` makes it";
  return pack.path.string() + ", " + plural(static_cast<std::int64_t>(pack.kernels), "kernel") +
         ", " + format_bytes(static_cast<double>(pack.bytes));
}

/// What a file of the cache says is cut to a width that leaves the table readable.
std::string entries_text(const KernelListing& listing) {
  if (listing.cache_entries.empty()) return {};
  constexpr std::size_t kNameWidth = 60, kArchitectureWidth = 12;
  Table table({{"In the cache"}, {"For"}, {"State"}, {"Size", Align::right}});
  std::string problems;
  for (const CacheEntryInfo& entry : listing.cache_entries) {
    const bool damaged = entry.state == CacheEntryState::damaged;
    const std::string name = damaged ? entry.path.filename().string() : entry.name;
    table.add_row({shortened(printable(name), kNameWidth),
                   shortened(printable(entry.architecture), kArchitectureWidth),
                   cache_entry_state_name(entry.state),
                   format_bytes(static_cast<double>(entry.bytes))});
    if (damaged) problems += "Damaged: " + printable(entry.problem) + "\n";
  }
  return table.str() + problems;
}

std::string listing_text(const KernelListing& listing) {
  Table table({{"Kernel"},
               {"For"},
               {"State"},
               {"Registers", Align::right},
               {"Spilled", Align::right},
               {"Stack", Align::right},
               {"Shared", Align::right},
               {"Code", Align::right}});
  for (const KernelInfo& kernel : listing.kernels) {
    const bool known = kernel.code_bytes != 0;
    table.add_row({kernel.name, kernel.architecture, kernel_state_name(kernel.state),
                   known ? std::to_string(kernel.registers) : "",
                   known ? std::to_string(kernel.spill_bytes) : "",
                   known ? std::to_string(kernel.stack_bytes) : "",
                   known ? std::to_string(kernel.static_shared_bytes) : "",
                   known ? format_bytes(static_cast<double>(kernel.code_bytes)) : ""});
  }
  std::string text = table.str();
  for (const KernelPackInfo& pack : listing.packs) {
    text += "Pack for " + pack.architecture + ": " + printable(pack_text(pack));
    if (is_emulated_only(pack.architecture)) text += std::string("; ") + emulated_only_text();
    text += "\n";
  }
  if (listing.cache.empty()) return text + "Cache: none, for want of a home folder\n";
  if (!listing.cache_problem.empty()) {
    return text + "Cache: not used: " + printable(listing.cache_problem) + "\n";
  }
  text += "Cache: " + printable(listing.cache.string()) + ", " +
          plural(static_cast<std::int64_t>(whole_entries(listing)), "kernel") + ", " +
          format_bytes(static_cast<double>(listing.cache_bytes)) + " of " +
          format_bytes(static_cast<double>(listing.cache_limit_bytes)) + "\n";
  return text + entries_text(listing);
}

constexpr const char* kListExamples = R"help(Examples:
  What is compiled, and what each kernel uses:
    blockscale kernels list

  Kernels that would be compiled at their first launch, in a script:
    blockscale kernels list --json | jq -r '.kernels[] | select(.state == "missing") | .name'

  Files of the cache that nothing here would use:
    blockscale kernels list --json | jq -r '.cache.entries[] | select(.state != "current") | .path'
)help";

ExitCode run_list(bool json) {
  const KernelListing listing = list_kernels();
  if (json) {
    print_json(listing_json(listing));
  } else {
    print(listing_text(listing));
  }
  return ExitCode::success;
}

void add_list(CLI::App& kernels, Action& action) {
  const auto json = std::make_shared<bool>(false);
  CLI::App* const command = kernels.add_subcommand(
      "list", "Show every kernel, where it is, what it uses, and what the cache holds");
  add_json(*command, *json);
  command->footer(kListExamples);
  command->callback([&action, json] { action = [json] { return run_list(*json); }; });
}

// --- kernels build -------------------------------------------------------------------------------

struct Build {
  KernelBuildOptions options;
  std::string output;
  bool json = false;
  bool quiet = false;
};

ExitCode run_build(Build& command) {
  KernelBuildOptions options = command.options;
  options.folder = command.output;
  if (!command.quiet && !command.json) {
    options.progress = [](std::size_t done, std::size_t total, const std::string& name) {
      std::fprintf(stderr, "[%zu/%zu] %s\n", done, total, name.c_str());
    };
  }
  const KernelBuildReport report = build_kernels(options);
  if (command.json) {
    Json packs = packs_json(report.packs);
    for (std::size_t i = 0; i < packs.size(); ++i) packs[i]["seconds"] = report.packs[i].seconds;
    print_json({{"packs", std::move(packs)},
                {"compiled", report.compiled},
                {"reused", report.reused},
                {"seconds", report.seconds}});
    return ExitCode::success;
  }
  for (const KernelPackInfo& pack : report.packs) {
    print(pack.architecture + ": " + printable(pack_text(pack)) + ", in " +
          format_duration(pack.seconds) + "\n");
  }
  print(plural(static_cast<std::int64_t>(report.compiled), "kernel") + " compiled, " +
        std::to_string(report.reused) + " kept, in " + format_duration(report.seconds) + "\n");
  return ExitCode::success;
}

constexpr const char* kBuildExamples = R"help(Examples:
  The pack of every architecture, beside the library:
    blockscale kernels build

  One architecture's, for another machine (BLOCKSCALE_KERNELS names the folder there):
    blockscale kernels build --architecture sm_90a --output packs
)help";

void add_build(CLI::App& kernels, Action& action) {
  const auto state = std::make_shared<Build>();
  CLI::App* const command = kernels.add_subcommand(
      "build", "Compile every kernel with NVRTC into the kernel pack; needs no GPU");
  command
      ->add_option("--architecture", state->options.architecture,
                   help_text("Such as sm_90a. Default: every one that kernels are written for"))
      ->option_text("NAME");
  command
      ->add_option("--output", state->output,
                   help_text("Folder for the packs. Default: beside the library, where they "
                             "are found without being asked for"))
      ->option_text("FOLDER");
  command->add_flag("--line-info", state->options.line_info,
                    help_text("Keep source lines for profilers; the files become some four times "
                              "as large"));
  command->add_flag("--rebuild", state->options.rebuild,
                    "Also what the pack has from the same sources");
  command->add_flag("--quiet", state->quiet, "Do not name each kernel on standard error");
  add_threads(*command, state->options.threads);
  add_json(*command, state->json);
  command->footer(kBuildExamples);
  command->callback([&action, state] { action = [state] { return run_build(*state); }; });
}

constexpr const char* kExamples = R"help(Examples:
  What is compiled, and what each kernel uses; `kernels list` says the same:
    blockscale kernels

  Compile it all ahead, so that no process ever does:
    blockscale kernels build
)help";

}  // namespace

void add_kernels(CLI::App& app, Action& action) {
  CLI::App* const kernels =
      app.add_subcommand("kernels", "List the GPU kernels that are compiled, or compile them");
  const auto json = std::make_shared<bool>(false);
  add_json(*kernels, *json);
  add_list(*kernels, action);
  add_build(*kernels, action);
  kernels->require_subcommand(0, 1);
  kernels->callback([&action, kernels, json] {  // after that of a command below it
    if (kernels->get_subcommands().empty()) {
      action = [json] { return run_list(*json); };
    } else if (*json) {
      throw UsageError("--json stands after list or build");
    }
  });
  kernels->footer(kExamples);
}

}  // namespace blockscale::cli
