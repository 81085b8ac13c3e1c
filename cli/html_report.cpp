#include "html_report.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "blockscale/error.h"
#include "blockscale/files.h"
#include "exit_code.h"

extern char** environ;

namespace blockscale::cli {
namespace {

// What python/blockscale/report/__main__.py starts its one line of error with.
constexpr std::string_view kErrorPrefix = "blockscale report: error: ";
constexpr const char* kAdvice =
    "; --html needs the Python package (pip install '.[report]' in a checkout of blockscale), and "
    "BLOCKSCALE_PYTHON to name its Python if that is not python3 on PATH";

std::string python_program() {
  const char* const named = std::getenv("BLOCKSCALE_PYTHON");
  return named == nullptr || *named == '\0' ? "python3" : named;
}

[[noreturn]] void fail_to(const std::string& action, int error_number) {
  throw Error(ErrorCode::io, "--html", "cannot " + action + ": " + std::strerror(error_number));
}

/// While it lives, SIGINT from the terminal is for the child alone, which then cleans up and ends.
class IgnoredInterrupt {
 public:
  IgnoredInterrupt() {
    struct sigaction ignore{};
    ignore.sa_handler = SIG_IGN;
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGINT, &ignore, &old_);
  }
  ~IgnoredInterrupt() { sigaction(SIGINT, &old_, nullptr); }
  IgnoredInterrupt(const IgnoredInterrupt&) = delete;
  IgnoredInterrupt& operator=(const IgnoredInterrupt&) = delete;
  bool was_ignored() const { return old_.sa_handler == SIG_IGN; }

 private:
  struct sigaction old_{};
};

/// This process's environment with PYTHONSAFEPATH: a folder named `blockscale` where the command is
/// run is no package.
std::vector<std::string> child_environment() {
  std::vector<std::string> variables = {"PYTHONSAFEPATH=1"};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with("PYTHONSAFEPATH=")) {
      variables.emplace_back(*variable);
    }
  }
  return variables;
}

/// A null-terminated array of `strings`, which it points into.
std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Starts a program found on PATH, with its standard error in `error_pipe`. Returns posix_spawnp's
/// error number.
int spawn(std::vector<std::string> arguments, int error_pipe, bool default_interrupt, pid_t& pid) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, error_pipe, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  if (default_interrupt) {
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGINT);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  }
  std::vector<std::string> environment = child_environment();
  const int error = posix_spawnp(&pid, arguments.front().c_str(), &actions, &attributes,
                                 pointers_to(arguments).data(), pointers_to(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

/// What comes through a pipe until its other end is closed, of which the last 64 KiB are kept.
std::string read_all(int pipe) {
  constexpr std::size_t kKept = 65536;
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t count = ::read(pipe, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(count));
    if (text.size() > 2 * kKept) text.erase(0, text.size() - kKept);
  }
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) fail_to("wait for Python", errno);
  }
  return status;
}

struct Finished {
  int status = 0;  // as waitpid gives it
  std::string errors;
};

Finished run(const std::vector<std::string>& arguments) {
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_to("make a pipe", errno);
  const IgnoredInterrupt interrupt;
  pid_t pid = 0;
  const int error = spawn(arguments, ends[1], !interrupt.was_ignored(), pid);
  ::close(ends[1]);
  Finished finished;
  if (error == 0) finished.errors = read_all(ends[0]);
  ::close(ends[0]);
  if (error != 0) {
    throw Error(ErrorCode::not_found, arguments.front(),
                std::string("cannot be run: ") + std::strerror(error) + kAdvice);
  }
  finished.status = wait_for(pid);
  return finished;
}

std::string last_line(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  return std::string(text.substr(text.rfind('\n') + 1));
}

/// The library's error code behind an exit code; internal ones have none.
bool error_code_of(int exit_code, ErrorCode& code) {
  for (const ErrorCode candidate :
       {ErrorCode::invalid_argument, ErrorCode::unsupported, ErrorCode::not_found,
        ErrorCode::already_exists, ErrorCode::corrupt_file, ErrorCode::io, ErrorCode::nonfinite,
        ErrorCode::interrupted}) {
    if (static_cast<int>(exit_code_of(candidate)) != exit_code) continue;
    code = candidate;
    return true;
  }
  return false;
}

}  // namespace

void check_html_output(const HtmlReport& report) {
  const std::filesystem::path path = report.output;
  std::error_code ignored;
  (void)output_file(path);
  if (!report.overwrite && std::filesystem::exists(path, ignored)) {
    throw Error(ErrorCode::already_exists, report.output, "exists; --overwrite replaces it");
  }
  if (!report.conversion.empty() && !std::filesystem::exists(report.conversion, ignored)) {
    throw Error(ErrorCode::not_found, report.conversion, "does not exist");
  }
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw Error(ErrorCode::not_found, folder.string(), "there is no such folder");
  }
}

void write_html_report(const HtmlReport& report) {
  const std::string python = python_program();
  std::vector<std::string> arguments = {python, "-m", "blockscale.report"};
  arguments.insert(arguments.end(), {"--threads", std::to_string(report.threads)});
  if (report.overwrite) arguments.emplace_back("--overwrite");
  for (const std::string& pattern : report.tensors) arguments.push_back("--tensor=" + pattern);
  if (!report.conversion.empty()) arguments.push_back("--conversion=" + report.conversion);
  arguments.push_back("--output=" + report.output);
  arguments.insert(arguments.end(), {"--", report.a, report.b});
  const Finished finished = run(arguments);
  if (WIFEXITED(finished.status) && WEXITSTATUS(finished.status) == 0) return;
  if (WIFSIGNALED(finished.status)) {
    const int signal = WTERMSIG(finished.status);
    const bool asked = signal == SIGINT || signal == SIGTERM;
    throw Error(asked ? ErrorCode::interrupted : ErrorCode::io, python,
                "was ended by signal " + std::to_string(signal));
  }
  const std::string line = last_line(finished.errors);
  ErrorCode code = ErrorCode::io;
  if (line.starts_with(kErrorPrefix) && error_code_of(WEXITSTATUS(finished.status), code)) {
    throw Error(code, "--html", line.substr(kErrorPrefix.size()));
  }
  throw Error(ErrorCode::not_found, python, "cannot make the report: " + line + kAdvice);
}

}  // namespace blockscale::cli
