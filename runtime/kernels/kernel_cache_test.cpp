// The cache: many processes, killed ones, damage, eviction, folders that cannot be written.
#include "runtime/kernels/kernel_cache.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <thread>

#include "models/testing.h"
#include "tests/child_process.h"
#include "tests/expect_error.h"

/// Whether file systems reserve no space, as some do not: a disk is then full in the middle of a
/// write.
static bool reserves_nothing = false;

/// In place of the C library's.
extern "C" int fallocate(int file, int mode, off_t offset, off_t length) {
  if (!reserves_nothing) {
    return static_cast<int>(::syscall(SYS_fallocate, file, mode, offset, length));
  }
  errno = EOPNOTSUPP;
  return -1;
}

namespace blockscale::runtime {
namespace {

namespace fs = std::filesystem;
using test::ScratchFolder;
using test::spawn;
using test::wait_for;

constexpr const char* kCompiler = "NVRTC of the test";

CompiledKernel kernel_of(std::uint64_t number, std::size_t bytes = 1000) {
  CompiledKernel kernel;
  kernel.name = "kernel_" + std::to_string(number);
  kernel.architecture = "sm_90a";
  kernel.compiler = kCompiler;
  kernel.source = {number, number};
  kernel.cubin.assign(bytes, static_cast<std::byte>(number));
  return kernel;
}

class Cache : public testing::Test {
 protected:
  CompiledKernel get(const KernelCache& cache, std::uint64_t number, std::size_t bytes = 1000) {
    const CompiledKernel kernel = kernel_of(number, bytes);
    return cache.get(kernel.source, kCompiler, [&] {
      ++compiled_;
      return kernel;
    });
  }
  void expect_whole(const CompiledKernel& kernel, std::uint64_t number, std::size_t bytes = 1000) {
    EXPECT_EQ(kernel.name, "kernel_" + std::to_string(number));
    EXPECT_EQ(kernel.cubin, kernel_of(number, bytes).cubin);
  }
  fs::path path_of(std::uint64_t number) const {
    return cache_.entry_path({number, number}, kCompiler);
  }

  ScratchFolder scratch_;
  KernelCache cache_{scratch_ / "made/when/needed"};
  int compiled_ = 0;
};

TEST_F(Cache, CompilesOnce) {
  expect_whole(get(cache_, 1), 1);
  expect_whole(get(cache_, 1), 1);
  EXPECT_EQ(compiled_, 1);
  expect_whole(get(KernelCache(cache_.folder()), 1), 1);  // another process's
  EXPECT_EQ(compiled_, 1);
  get(cache_, 2);
  EXPECT_EQ(compiled_, 2);
  ASSERT_EQ(cache_.entries().size(), 2u);
  EXPECT_EQ(cache_.entries()[1].kernel.name, "kernel_2");
}

TEST_F(Cache, KeepsCompilersApart) {
  get(cache_, 1);
  EXPECT_NE(cache_.entry_path({1, 1}, "NVRTC 13.1"), path_of(1));
}

TEST_F(Cache, DamagedEntriesAreMadeAnew) {
  get(cache_, 1);
  const std::string whole = test::read_text(path_of(1));
  int expected = 1;
  for (std::size_t size = 0; size < whole.size(); size += 7) {
    test::write_text(path_of(1), whole.substr(0, size));
    expect_whole(get(cache_, 1), 1);
    EXPECT_EQ(compiled_, ++expected) << "cut to " << size;
    EXPECT_EQ(test::read_text(path_of(1)), whole);
  }
  for (std::size_t i = 0; i < whole.size(); i += 11) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 4);
    test::write_text(path_of(1), changed);
    expect_whole(get(cache_, 1), 1);
  }
  EXPECT_GT(compiled_, expected + 50);
  // One entry under another's name.
  get(cache_, 2);
  fs::copy_file(path_of(2), path_of(1), fs::copy_options::overwrite_existing);
  expect_whole(get(cache_, 1), 1);
}

TEST_F(Cache, AFailedCompileIsThrownAndNotStored) {
  const auto fail = [&]() -> CompiledKernel {
    throw Error(ErrorCode::compile_failed, "kernel x", "with its log");
  };
  test::expect_error(ErrorCode::compile_failed, "kernel x", "with its log",
                     [&] { cache_.get({1, 1}, kCompiler, fail); });
  EXPECT_TRUE(cache_.entries().empty());
  expect_whole(get(cache_, 1), 1);  // the lock was given back
}

TEST_F(Cache, ManyProcessesCompileOnce) {
  const fs::path log = scratch_ / "compiles";
  std::vector<pid_t> children;
  for (int i = 0; i < 12; ++i) {
    children.push_back(spawn([&] {
      const CompiledKernel kernel = kernel_of(1, 100'000);
      const auto got = cache_.get(kernel.source, kCompiler, [&] {
        const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
        if (::write(file, "x", 1) != 1) throw std::runtime_error("cannot count");
        ::usleep(50'000);
        return kernel;
      });
      return got.cubin == kernel.cubin ? 0 : 1;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(wait_for(child), 0);
  EXPECT_EQ(test::read_text(log), "x");
}

TEST_F(Cache, AKilledProcessBlocksNobody) {
  const fs::path started = scratch_ / "started";
  const pid_t child = spawn([&] {
    cache_.get({1, 1}, kCompiler, [&]() -> CompiledKernel {
      test::write_text(started, "x");
      for (;;) ::pause();
    });
    return 0;
  });
  while (!fs::exists(started)) ::usleep(1000);
  std::thread killer([&] {
    ::usleep(50'000);
    ::kill(child, SIGKILL);
  });
  expect_whole(get(cache_, 1), 1);
  killer.join();
  EXPECT_EQ(wait_for(child), 128 + SIGKILL);
  EXPECT_EQ(compiled_, 1);
}

/// A child that is forked while a kernel is compiled has the lock's descriptor too.
TEST_F(Cache, AForkedChildDoesNotKeepTheLock) {
  pid_t child = 0;
  cache_.get({1, 1}, kCompiler, [&] {
    child = spawn([]() -> int {
      for (;;) ::pause();
    });
    return kernel_of(1);
  });
  const KernelCache another(cache_.folder());
  const auto start = std::chrono::steady_clock::now();
  expect_whole(get(another, 1 + 64), 1 + 64);  // of the same lock file
  EXPECT_LT(std::chrono::steady_clock::now() - start, KernelCache::kLongestWait / 2);
  ::kill(child, SIGKILL);
  wait_for(child);
}

TEST_F(Cache, ALockThatIsNeverGivenBackCostsAWaitOnly) {
  const KernelCache impatient(cache_.folder(), KernelCache::kDefaultLimit,
                              std::chrono::milliseconds(50));
  get(impatient, 1);
  const fs::path lock = cache_.folder() / "lock-2";
  const int descriptor = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  ASSERT_EQ(::flock(descriptor, LOCK_EX), 0);
  const auto start = std::chrono::steady_clock::now();
  expect_whole(get(impatient, 2), 2);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(50));
  ::close(descriptor);
  expect_whole(get(impatient, 2), 2);  // was stored all the same
  EXPECT_EQ(compiled_, 2);
}

TEST_F(Cache, KilledWritersLeaveWholeEntriesOnly) {
  constexpr std::size_t kBytes = 4 << 20;
  const pid_t child = spawn([&] {
    for (std::uint64_t number = 1;; ++number) get(cache_, number % 4 + 1, kBytes + number);
    return 0;
  });
  while (cache_.entries().empty()) ::usleep(1000);
  ::usleep(30'000);
  ::kill(child, SIGKILL);
  wait_for(child);
  for (const auto& item : fs::directory_iterator(cache_.folder())) {
    if (item.path().extension() != ".kernel") continue;
    EXPECT_NO_THROW(KernelPack::open(item.path()));
  }
  get(cache_, 9);  // storing removes what the killed process left
  for (const auto& item : fs::directory_iterator(cache_.folder())) {
    EXPECT_FALSE(is_temporary_name(item.path().filename().string())) << item.path();
  }
}

TEST_F(Cache, TheLeastRecentlyUsedIsEvicted) {
  const KernelCache small(cache_.folder(), 10'000);
  const auto use = [&](std::uint64_t number) {
    get(small, number, 2500);
    ::usleep(15'000);  // file times are no finer than the kernel's clock tick
  };
  for (const std::uint64_t number : {1u, 2u, 3u}) use(number);
  use(1);
  EXPECT_EQ(compiled_, 3);
  use(4);  // 4 entries of 2.5 kB and their headers exceed the limit
  EXPECT_TRUE(fs::exists(path_of(1)));
  EXPECT_FALSE(fs::exists(path_of(2)));
  EXPECT_TRUE(fs::exists(path_of(3)));
  EXPECT_TRUE(fs::exists(path_of(4)));
  get(small, 5, 100'000);  // larger than the limit: kept alone
  EXPECT_TRUE(fs::exists(path_of(5)));
  EXPECT_EQ(small.entries().size(), 1u);
}

TEST_F(Cache, WorksWithoutAFolder) {
  for (const fs::path& folder :
       {fs::path(), fs::path("/proc/blockscale"), fs::path("/dev/null/blockscale")}) {
    compiled_ = 0;
    const KernelCache none(folder);
    expect_whole(get(none, 1), 1);
    expect_whole(get(none, 1), 1);
    EXPECT_EQ(compiled_, 2) << folder;
    EXPECT_TRUE(none.entries().empty());
  }
}

TEST_F(Cache, ReadsAFolderThatItCannotWrite) {
  get(cache_, 1);
  const int status = wait_for(spawn([&] {
    if (::chmod(scratch_.path().c_str(), 0755) != 0 ||
        ::chmod(cache_.folder().c_str(), 0555) != 0 || ::setuid(65534) != 0) {
      return 77;
    }
    expect_whole(get(cache_, 1), 1);
    if (compiled_ != 1) return 1;
    expect_whole(get(cache_, 2), 2);  // compiled, not stored
    return compiled_ == 2 && !fs::exists(path_of(2)) && !HasFailure() ? 0 : 2;
  }));
  ::chmod(cache_.folder().c_str(), 0755);
  if (status == 77) GTEST_SKIP() << "cannot become another user";
  EXPECT_EQ(status, 0);
}

TEST_F(Cache, TheFolderIsMadeForTheUserAlone) {
  const mode_t before = ::umask(0);
  const KernelCache slash(scratch_ / "with/slash/");
  for (const KernelCache& cache : {cache_, slash}) {
    get(cache, 1);
    EXPECT_EQ(fs::status(cache.folder()).permissions(), fs::perms::owner_all);
    EXPECT_EQ(cache.problem(), "");
    EXPECT_EQ(cache.entries().size(), 1u);
  }
  ::umask(before);
}

TEST_F(Cache, AFolderThatOthersCanWriteIsNotUsed) {
  get(cache_, 1);
  for (const mode_t mode : {0770u, 0707u, 01777u}) {
    ASSERT_EQ(::chmod(cache_.folder().c_str(), mode), 0);
    compiled_ = 0;
    expect_whole(get(cache_, 1), 1);
    EXPECT_EQ(compiled_, 1);
    EXPECT_THAT(cache_.problem(), testing::HasSubstr("can be written by others"));
    EXPECT_TRUE(cache_.entries().empty());
    get(cache_, 2);
    EXPECT_FALSE(fs::exists(path_of(2)));
  }
  ASSERT_EQ(::chmod(cache_.folder().c_str(), 0755), 0);
  get(cache_, 1);
  EXPECT_EQ(compiled_, 2);
}

TEST_F(Cache, AnotherUsersFolderIsNotUsed) {
  get(cache_, 1);
  if (::chown(cache_.folder().c_str(), 65534, 65534) != 0) GTEST_SKIP() << "cannot give it away";
  expect_whole(get(cache_, 1), 1);
  EXPECT_EQ(compiled_, 2);
  EXPECT_THAT(cache_.problem(), testing::HasSubstr("belongs to user 65534"));
}

TEST_F(Cache, AnotherUsersEntryIsNotUsed) {
  get(cache_, 1);
  if (::chown(path_of(1).c_str(), 65534, 65534) != 0) GTEST_SKIP() << "cannot give it away";
  EXPECT_THAT(cache_.entries().at(0).problem, testing::HasSubstr("belongs to user 65534"));
  expect_whole(get(cache_, 1), 1);
  EXPECT_EQ(compiled_, 2);
  expect_whole(get(cache_, 1), 1);  // which is its own again
  EXPECT_EQ(compiled_, 2);
}

TEST_F(Cache, AFullDiskCostsTheStoringOnly) {
  const int status = wait_for(spawn([&] {
    std::signal(SIGXFSZ, SIG_IGN);   // for the output of the test itself
    const rlimit limit{2000, 2000};  // of a file's size: as a full disk, within AtomicFile
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 77;
    expect_whole(get(cache_, 1, 100'000), 1, 100'000);
    return compiled_ == 1 && !fs::exists(path_of(1)) && !HasFailure() ? 0 : 1;
  }));
  EXPECT_EQ(status, 0);
}

/// Mounts a file system of 64 KiB that this process alone sees. False if that is not allowed.
bool mount_small(const fs::path& folder) {
  const std::string user = "0 " + std::to_string(::geteuid()) + " 1";
  if (::unshare(CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    test::write_text("/proc/self/uid_map", user);
  }
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("small", folder.c_str(), "tmpfs", 0, "size=64k") == 0;
}

/// What happens in a file system that is full, once entry 2 is stored. It is a child's.
void expect_storing_alone_fails(const fs::path& folder, const std::string& action) {
  const std::vector<std::byte> bytes(100'000);
  test::expect_error(ErrorCode::io, (folder / "file").string(), action, [&] {
    AtomicFile file(folder / "file", bytes.size());
    file.write(0, bytes);
  });
  int compiled = 0;
  const KernelCache cache(folder / "cache");
  for (const std::size_t size : {10'000u, 100'000u, 100'000u, 10'000u}) {
    const CompiledKernel kernel = kernel_of(size, size);
    const CompiledKernel got = cache.get(kernel.source, kCompiler, [&] {
      ++compiled;
      return kernel;
    });
    EXPECT_EQ(got.cubin, kernel.cubin);
  }
  EXPECT_EQ(compiled, 3);  // the larger one twice, for want of room
  EXPECT_EQ(cache.entries().size(), 1u);
  for (const auto& item : fs::directory_iterator(cache.folder())) {
    EXPECT_FALSE(is_temporary_name(item.path().filename().string())) << item.path();
  }
}

TEST_F(Cache, AFullFileSystemCostsTheStoringOnly) {
  const fs::path folder = scratch_ / "small";
  fs::create_directory(folder);
  for (const bool reserves : {true, false}) {
    const int status = wait_for(spawn([&] {
      if (!mount_small(folder)) return 77;
      reserves_nothing = !reserves;
      // Without a reservation some 64 KiB are written before there is no room.
      expect_storing_alone_fails(folder, reserves ? "reserve 100000 bytes" : "bytes at 65536");
      return HasFailure() ? 1 : 0;
    }));
    if (status == 77) GTEST_SKIP() << "no file system can be mounted";
    EXPECT_EQ(status, 0) << (reserves ? "with" : "without") << " reservations";
  }
}

TEST_F(Cache, IsWhereTheUserSays) {
  setenv("BLOCKSCALE_CACHE", scratch_.path().c_str(), 1);
  setenv("BLOCKSCALE_CACHE_LIMIT", "12345", 1);
  EXPECT_EQ(KernelCache::of_user().folder(), scratch_.path());
  EXPECT_EQ(KernelCache::of_user().limit_bytes(), 12345u);
  setenv("BLOCKSCALE_CACHE_LIMIT", "1GB", 1);
  test::expect_invalid("BLOCKSCALE_CACHE_LIMIT", "is '1GB'; a number of bytes",
                       [] { KernelCache::of_user(); });
  unsetenv("BLOCKSCALE_CACHE_LIMIT");
  unsetenv("BLOCKSCALE_CACHE");
  setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(KernelCache::of_user().folder(), "/x/blockscale");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/home/me", 1);
  EXPECT_EQ(KernelCache::of_user().folder(), "/home/me/.cache/blockscale");
  unsetenv("HOME");
  EXPECT_EQ(KernelCache::of_user().folder(), "");
}

}  // namespace
}  // namespace blockscale::runtime
