// The converter is killed before each system call that changes the disk, one after the other, and
// resumed: the result must always be the one of an undisturbed run, and nothing else may remain.
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <map>
#include <optional>

#include "blockscale/convert.h"
#include "models/checkpoint/checkpoint_testing.h"

namespace blockscale {
namespace {

namespace fs = std::filesystem;
using test::ScratchFolder;
using test::write_text;

/// Files of a tree by relative path.
using Tree = std::map<std::string, std::string>;

Tree read_tree(const fs::path& root) {
  Tree tree;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    tree[entry.path().lexically_relative(root).string()] = test::read_text(entry.path());
  }
  return tree;
}

/// System calls before which a kill can leave the disk in a new state.
bool changes_the_disk(std::uint64_t number) {
  constexpr std::uint64_t kCalls[] = {
      SYS_renameat2, SYS_unlinkat,  SYS_mkdirat,  SYS_pwrite64, SYS_fsync,
      SYS_fallocate, SYS_ftruncate, SYS_fchmodat, SYS_openat,   SYS_flock,
      SYS_write,     SYS_renameat,  SYS_fchmod,
#ifdef __x86_64__
      SYS_rename,    SYS_unlink,    SYS_mkdir,    SYS_rmdir,    SYS_chmod,
#endif
  };
  return std::find(std::begin(kCalls), std::end(kCalls), number) != std::end(kCalls);
}

struct Traced {
  bool allowed = true;  // whether this machine lets a process trace its child
  bool killed = false;
  int status = 0;  // of a child that was not killed
};

/// Runs `body` in a child and kills it before its call number `kill_at` (from 1) that changes the
/// disk, if there are so many. The child has one thread.
Traced run_and_kill(const std::function<void()>& body, int kill_at) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
    ::raise(SIGSTOP);
    try {
      body();
    } catch (const std::exception& error) {
      ::dprintf(STDERR_FILENO, "%s\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status)) return {.allowed = false};
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  int seen = 0;
  int signal = 0;
  while (true) {
    ::ptrace(PTRACE_SYSCALL, child, nullptr, signal);
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status)) return {.status = WEXITSTATUS(status)};
    if (WIFSIGNALED(status)) return {.status = 128 + WTERMSIG(status)};
    const bool call = WSTOPSIG(status) == (SIGTRAP | 0x80);
    signal = call ? 0 : WSTOPSIG(status);
    if (!call) continue;
    __ptrace_syscall_info info = {};
    ::ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof info, &info);
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY || !changes_the_disk(info.entry.nr)) continue;
    if (++seen < kill_at) continue;
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return {.killed = true};
  }
}

/// A folder in memory where there is one: the test flushes thousands of times.
fs::path scratch_root() {
  return ::access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm") : fs::path(::testing::TempDir());
}

class ConvertKill : public ::testing::Test {
 protected:
  ConvertKill() {
    const fs::path source = root_ / "source";
    fs::create_directories(source / "1_Pooling");
    test::write_checkpoint(source,
                           {test::f32_tensor("layer.0.dense.weight", {32, 64}, 1),
                            test::f32_tensor("layer.0.dense.bias", {32}, 2),
                            test::f32_tensor("layer.1.dense.weight", {32, 64}, 3),
                            test::f32_tensor("norm.weight", {64}, 4)},
                           {{"model_type", "bert"}});
    write_text(source / "tokenizer.json", "{\"tokens\": []}");
    write_text(source / "1_Pooling" / "config.json", "{}");
    options_.recipe = Recipe::nvfp4;
    options_.shard_bytes = 1300;
    options_.threads = 1;
    options_.resume = true;
  }

  void convert_once(const fs::path& source, const fs::path& destination, bool overwrite) const {
    ConvertOptions options = options_;
    options.overwrite = overwrite;
    convert(source, destination, options);
  }

  /// Kills before every call in turn. `prepare` puts what is there before a run into the folder.
  void kill_everywhere(const std::string& source, const std::string& destination, bool overwrite,
                       const std::function<void(const fs::path&)>& prepare) {
    const fs::path from = root_ / source;
    fs::create_directories(root_ / "expected");
    convert_once(from, root_ / "expected" / destination, false);
    const Tree expected = read_tree(root_ / "expected");
    int kill_at = 1;
    for (bool killed = true; killed; ++kill_at) {
      SCOPED_TRACE("killed before call " + std::to_string(kill_at));
      const fs::path folder = root_ / "work";
      fs::remove_all(folder);
      fs::create_directories(folder);
      prepare(folder);
      const Tree before = read_tree(folder);
      const auto run = [&] { convert_once(from, folder / destination, overwrite); };
      const Traced traced = run_and_kill(run, kill_at);
      if (!traced.allowed) GTEST_SKIP() << "this machine does not let a process trace its child";
      ASSERT_EQ(traced.status, 0);
      killed = traced.killed;
      check_destination(folder, destination, before, expected);
      if (killed) resume(run, read_tree(folder) == expected);
      ASSERT_EQ(read_tree(folder), expected);
      ASSERT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
    }
    EXPECT_GT(kill_at, 40);  // the test saw the calls it is about
  }

  /// A process that was killed when its work was done but for removing an empty folder cannot know
  /// that: the destination exists, and is the result.
  static void resume(const std::function<void()>& run, bool done) {
    try {
      run();
    } catch (const Error& error) {
      if (!done || error.code() != ErrorCode::already_exists) throw;
    }
  }

  /// After a kill the destination is what was there before, or the result; never a part.
  static void check_destination(const fs::path& folder, const std::string& destination,
                                const Tree& before, const Tree& expected) {
    Tree found = read_tree(folder);
    std::erase_if(found, [&](const auto& entry) { return !entry.first.starts_with(destination); });
    ASSERT_TRUE(found == before || found == expected);
  }

  ScratchFolder root_{scratch_root()};
  ConvertOptions options_;
};

TEST_F(ConvertKill, NewFolder) {
  kill_everywhere("source", "result", false, [](const fs::path&) {});
}

TEST_F(ConvertKill, FolderInThePlaceOfAnother) {
  kill_everywhere("source", "result", true, [](const fs::path& folder) {
    test::write_checkpoint(folder / "result", {test::f32_tensor("old.weight", {4, 4}, 9)},
                           {{"model_type", "old"}});
    write_text(folder / "result" / "old.txt", "must not survive");
  });
}

TEST_F(ConvertKill, FileInThePlaceOfAnother) {
  kill_everywhere("source/model.safetensors", "result.safetensors", true,
                  [](const fs::path& folder) {
                    test::write_store(folder / "result.safetensors",
                                      {test::f32_tensor("old.weight", {4, 4}, 9)});
                  });
}

}  // namespace
}  // namespace blockscale
