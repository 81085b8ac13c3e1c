// The blockscale command: parse, run the action that the command set, turn errors into exit codes.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "blockscale/files.h"
#include "blockscale/system.h"
#include "command.h"
#include "log.h"
#include "output.h"

namespace blockscale::cli {
namespace {

constexpr const char* kDescription =
    "Block-scaled low-precision weights: convert checkpoints to NVFP4, MX and FP8, look inside\n"
    "them, measure what they cost, and multiply with them.";

constexpr const char* kExamples =
    "Examples:\n"
    "  blockscale convert ./model ./model-nvfp4 --recipe nvfp4\n"
    "  blockscale compare ./model ./model-nvfp4\n"
    "  blockscale COMMAND --help\n"
    "\n"
    "BLOCKSCALE_LOG=debug (trace, debug, info, warning, error, critical, off) logs to standard\n"
    "error. A failed command prints one line there, and a compiler's log after it.\n"
    "\n";

/// "convert", "bench quantize"; empty if no command was named.
std::string command_name(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  if (parsed.empty()) return "";
  const std::string rest = command_name(*parsed.front());
  return parsed.front()->get_name() + (rest.empty() ? "" : " " + rest);
}

int fail(const CLI::App& app, ExitCode code, const std::string& message) {
  print_error(command_name(app), message);
  return static_cast<int>(code);
}

/// A compiler's log follows its error on lines of its own.
int fail(const CLI::App& app, const Error& error) {
  const std::string_view text = error.what();
  const std::size_t line = error.code() == ErrorCode::compile_failed
                               ? std::min(text.find('\n'), text.size())
                               : text.size();
  const int code = fail(app, exit_code_of(error.code()), std::string(text.substr(0, line)));
  if (line < text.size()) std::fwrite(text.data() + line + 1, 1, text.size() - line - 1, stderr);
  return code;
}

std::string see_help(const CLI::App& app) {
  const std::string command = command_name(app);
  return "; see blockscale " + (command.empty() ? "" : command + " ") + "--help";
}

/// What is wrong with the command line. CLI11 calls a command that does not exist a missing one.
std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const auto unknown = app.remaining();
  if (!app.get_subcommands().empty() || unknown.empty()) return error.what();
  std::string commands;
  for (const CLI::App* command : app.get_subcommands({})) {
    commands += (commands.empty() ? "" : ", ") + command->get_name();
  }
  const bool option = unknown.front().starts_with('-');
  return "'" + unknown.front() + "' is no " + (option ? "option" : "command") +
         "; the commands are " + commands;
}

/// Throws CLI::ParseError, which also stands for --help and --version.
Action parse(CLI::App& app, int argc, char** argv) {
  Action action;
  app.footer(kExamples + exit_code_help());
  app.set_version_flag("--version", std::string("blockscale ") + library_version(),
                       "Print the version and exit");
  app.require_subcommand(1);
  app.get_formatter()->column_width(28);
  add_convert(app, action);
  add_inspect(app, action);
  add_compare(app, action);
  add_gemm(app, action);
  add_moe(app, action);
  add_bench(app, action);
  add_kernels(app, action);
  add_doctor(app, action);
  app.parse(argc, argv);
  return action;
}

int run(int argc, char** argv) {
  CLI::App app(kDescription, "blockscale");
  try {
    const Action action = parse(app, argc, argv);
    set_up_log();
    exit_on_truncated_mapping(static_cast<int>(ExitCode::io));
    spdlog::debug("blockscale {}, {} code on up to {} threads: {}", library_version(),
                  simd_target(), cpu_info().threads, command_name(app));
    const ExitCode code = action();
    finish_output();
    spdlog::debug("done, exit code {}", static_cast<int>(code));
    return static_cast<int>(code);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);
    return fail(app, ExitCode::usage, usage_message(app, error) + see_help(app));
  } catch (const UsageError& error) {
    return fail(app, ExitCode::usage, error.what() + see_help(app));
  } catch (const Error& error) {
    return fail(app, error);
  } catch (const std::bad_alloc&) {
    return fail(app, ExitCode::internal,
                "out of memory; ask for smaller sizes or a lower --memory");
  } catch (const std::exception& error) {
    return fail(app, ExitCode::internal, std::string("internal error: ") + error.what());
  }
}

}  // namespace
}  // namespace blockscale::cli

int main(int argc, char** argv) {
  return blockscale::cli::run(argc, argv);
}
