// Files appear whole or not at all: killed writers, full disks, folders that may not be written.
#include "blockscale/files.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "blockscale/safetensors.h"
#include "models/testing.h"
#include "tests/child_process.h"

namespace blockscale {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::read_text;
using test::ScratchFolder;
using test::spawn;
using test::wait_for;
using test::write_text;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

constexpr int kRefused = 0;       // io, and the reason was stated
constexpr int kCannotSetUp = 77;  // this machine does not let the test arrange its case

/// What a child returns: whether writing `bytes` to `path` gives io with `reason` and leaves
/// nothing in its folder.
int try_to_write(const fs::path& path, std::size_t bytes, std::string_view reason) {
  try {
    write_file_atomically(path, std::string(bytes, 'x'));
    return 1;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::io) return 2;
    if (std::string_view(error.what()).find(reason) == std::string_view::npos) {
      ::fputs(error.what(), stderr);
      return 3;
    }
  }
  return fs::is_empty(path.parent_path()) ? kRefused : 4;
}

TEST(AtomicFile, WritesReplacesAndLeavesNothingElse) {
  const ScratchFolder folder;
  write_file_atomically(folder / "config.json", "first");
  EXPECT_EQ(read_text(folder / "config.json"), "first");
  write_file_atomically(folder / "config.json", "2nd");
  EXPECT_EQ(read_text(folder / "config.json"), "2nd");
  write_file_atomically(folder / "empty", "");
  EXPECT_EQ(read_text(folder / "empty"), "");
  EXPECT_THAT(folder.names(), ElementsAre("config.json", "empty"));
  const std::string long_name(255, 'n');
  write_file_atomically(folder / long_name, "long");
  EXPECT_EQ(read_text(folder / long_name), "long");
}

TEST(AtomicFile, ObeysTheUmask) {
  const ScratchFolder folder;
  const mode_t before = ::umask(027);
  write_file_atomically(folder / "a", "a");
  ::umask(before);
  struct stat status;
  ASSERT_EQ(::stat((folder / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST(AtomicFile, IsGoneUnlessPublished) {
  const ScratchFolder folder;
  {
    AtomicFile file(folder / "a", 4);
    file.write(2, bytes_of("cd"));
    file.write(0, bytes_of("ab"));
    ASSERT_EQ(folder.names().size(), 1u);
    EXPECT_TRUE(is_temporary_name(folder.names()[0])) << folder.names()[0];
  }
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(AtomicFile, PublishesOnce) {
  const ScratchFolder folder;
  AtomicFile file(folder / "a", 1);
  file.write(0, bytes_of("x"));
  file.publish();
  expect_error(ErrorCode::invalid_argument, (folder / "a").string(), "published already",
               [&] { file.publish(); });
}

TEST(AtomicFile, TwoWritersOfOneName) {
  const ScratchFolder folder;
  AtomicFile first(folder / "a", 1), second(folder / "a", 1);
  first.write(0, bytes_of("1"));
  second.write(0, bytes_of("2"));
  EXPECT_EQ(folder.names().size(), 2u);
  second.publish();
  EXPECT_EQ(read_text(folder / "a"), "2");
  first.publish();
  EXPECT_EQ(read_text(folder / "a"), "1");
}

TEST(AtomicFile, RefusesPathsThatCannotBeFiles) {
  const ScratchFolder folder;
  write_text(folder / "file", "x");
  fs::create_directory(folder / "sub");
  const auto expect = [](ErrorCode code, const fs::path& path, const std::string& reason) {
    expect_error(code, path.string(), reason, [&] { write_file_atomically(path, "x"); });
  };
  expect(ErrorCode::not_found, folder / "none" / "a", "cannot create a file in");
  expect(ErrorCode::not_found, folder / "file" / "a", "cannot create a file in");
  expect(ErrorCode::invalid_argument, folder / "sub", "names a folder");
  expect(ErrorCode::invalid_argument, folder.path() / "", "names a folder");
  expect(ErrorCode::invalid_argument, "", "names a folder");
  expect(ErrorCode::io, folder / std::string(256, 'n'), "rename the finished file");
  EXPECT_THAT(folder.names(), ElementsAre("file", "sub"));
}

/// A node that this machine may not let us make.
bool make_node(const fs::path& path, mode_t type) {
  return ::mknod(path.c_str(), type | 0600, makedev(1, 3)) == 0;  // as /dev/null
}

TEST(AtomicFile, ReplacesRegularFilesOnly) {
  const ScratchFolder folder;
  ASSERT_TRUE(make_node(folder / "fifo", S_IFIFO));
  ASSERT_TRUE(make_node(folder / "socket", S_IFSOCK));
  fs::create_symlink("fifo", folder / "to-fifo");
  fs::create_symlink("nothing", folder / "nowhere");
  std::vector<std::pair<std::string, std::string>> refused = {
      {"fifo", "is a FIFO"},
      {"socket", "is a socket"},
      {"to-fifo", "leads to a FIFO"},
      {"nowhere", "is a link that leads nowhere"}};
  if (make_node(folder / "device", S_IFCHR)) {
    fs::create_symlink("device", folder / "to-device");
    refused.insert(refused.end(), {{"device", "is a device"}, {"to-device", "leads to a device"}});
  }
  const std::vector<std::string> before = folder.names();
  const Folder opened = Folder::open(folder.path());
  for (const auto& [name, reason] : refused) {
    SCOPED_TRACE(name);
    const mode_t type = opened.status(name)->st_mode;
    expect_error(ErrorCode::invalid_argument, (folder / name).string(), reason,
                 [&] { write_file_atomically(folder / name, "x"); });
    expect_error(ErrorCode::invalid_argument, (folder / name).string(), reason,
                 [&] { SafetensorsWriter(folder / name, {{"a", DType::U8, {1}, 0}}); });
    expect_error(ErrorCode::invalid_argument, (folder / name).string(), "is a",
                 [&] { write_file_atomically(opened, name, "x"); });
    EXPECT_EQ(opened.status(name)->st_mode, type);
  }
  EXPECT_EQ(folder.names(), before);
  if (refused.size() == 4) GTEST_SKIP() << "no right to make device nodes here; the rest passed";
}

TEST(AtomicFile, DoesNotReplaceWhatAppearsMeanwhile) {
  const ScratchFolder folder;
  AtomicFile file(folder / "a", 1);
  file.write(0, bytes_of("x"));
  ASSERT_TRUE(make_node(folder / "a", S_IFIFO));
  expect_error(ErrorCode::invalid_argument, (folder / "a").string(), "is a FIFO",
               [&] { file.publish(); });
  EXPECT_TRUE(fs::is_fifo(folder / "a"));
}

TEST(AtomicFile, WritesToWhereALinkLeads) {
  const ScratchFolder folder;
  fs::create_directory(folder / "sub");
  write_text(folder / "sub" / "real", "before");
  fs::create_symlink("sub/real", folder / "link");
  write_file_atomically(folder / "link", "after");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_text(folder / "sub" / "real"), "after");
  // A name in an open folder is taken as it is.
  expect_error(ErrorCode::invalid_argument, (folder / "link").string(), "is a link",
               [&] { write_file_atomically(Folder::open(folder.path()), "link", "x"); });
  // Other names of a file keep what they had.
  fs::create_hard_link(folder / "sub" / "real", folder / "other name");
  write_file_atomically(folder / "sub" / "real", "new");
  EXPECT_EQ(read_text(folder / "other name"), "after");
}

TEST(AtomicFile, StaysInItsFolderWhenThatMoves) {
  const ScratchFolder folder;
  fs::create_directories(folder / "a");
  fs::create_directories(folder / "stranger");
  AtomicFile file(folder / "a" / "file", 1);
  file.write(0, bytes_of("x"));
  fs::rename(folder / "a", folder / "moved");
  fs::create_symlink("stranger", folder / "a");
  file.publish();
  EXPECT_EQ(read_text(folder / "moved" / "file"), "x");
  EXPECT_TRUE(fs::is_empty(folder / "stranger"));
}

TEST(AtomicFile, RefusesMoreThanTheLimitOnFileSizes) {
  const ScratchFolder folder;
  const int result = wait_for(spawn([&] {
    const rlimit limit{1000, RLIM_INFINITY};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return kCannotSetUp;
    write_file_atomically(folder / "small", std::string(1000, 'x'));
    fs::remove(folder / "small");
    return try_to_write(folder / "large", 1001, "cannot reserve 1001 bytes: File too large");
  }));
  EXPECT_EQ(result, kRefused);
  expect_error(ErrorCode::io, (folder / "huge").string(), "File too large",
               [&] { AtomicFile(folder / "huge", ~std::uint64_t{0}); });
}

TEST(AtomicFile, RefusesAFullDiskBeforeTheWorkIsDone) {
  const ScratchFolder folder;
  const int result = wait_for(spawn([&] {
    const int flags = ::geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER;
    if (::unshare(flags) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
      return kCannotSetUp;
    }
    try {
      SafetensorsWriter(folder / "a", {{"a", DType::U8, {100'000}, 0}});
      return 5;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::io || !fs::is_empty(folder.path())) return 6;
    }
    return try_to_write(folder / "a", 100'000, "(65536 bytes are free): No space left on device");
  }));
  if (result == kCannotSetUp) GTEST_SKIP() << "no right to mount a small tmpfs here";
  EXPECT_EQ(result, kRefused);
}

TEST(AtomicFile, RefusesAFolderWithoutPermission) {
  const ScratchFolder folder;
  const fs::path locked = folder / "locked";
  fs::create_directory(locked);
  fs::permissions(folder.path(), fs::perms(0755));
  fs::permissions(locked, fs::perms(0555));
  const int result = wait_for(spawn([&] {
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && ::setuid(kNobody) != 0) return kCannotSetUp;
    return try_to_write(locked / "a", 10, "Permission denied");
  }));
  EXPECT_EQ(result, kRefused);
  fs::permissions(locked, fs::perms(0755));
}

/// Starts a child that writes half of a safetensors file and waits.
pid_t spawn_stuck_writer(const fs::path& path) {
  int ready[2];
  if (::pipe(ready) != 0) throw std::runtime_error("pipe failed");
  const pid_t child = spawn([&] {
    SafetensorsWriter writer(path, {{"a", DType::U8, {1000}, 0}});
    writer.write(0, 0, bytes_of(std::string(500, 'x')));
    if (::write(ready[1], "!", 1) != 1) return 1;
    ::pause();
    return 2;
  });
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(ready[0]);
  ::close(ready[1]);
  return child;
}

TEST(AtomicFile, KilledWritersLeaveOnlyWhatCanBeCleaned) {
  const ScratchFolder folder;
  write_text(folder / "a.safetensors", "before");
  const pid_t child = spawn_stuck_writer(folder / "a.safetensors");
  AtomicFile mine(folder / "b", 1);
  EXPECT_EQ(folder.names().size(), 3u);
  EXPECT_EQ(remove_stale_temporaries(folder.path()), 0);  // both writers live
  EXPECT_EQ(folder.names().size(), 3u);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(wait_for(child), 128 + SIGKILL);
  EXPECT_EQ(folder.names().size(), 3u);
  EXPECT_EQ(remove_stale_temporaries(folder.path()), 1);
  EXPECT_EQ(folder.names().size(), 2u);
  EXPECT_EQ(read_text(folder / "a.safetensors"), "before");
  mine.write(0, bytes_of("x"));
  mine.publish();
  EXPECT_THAT(folder.names(), ElementsAre("a.safetensors", "b"));
}

TEST(AtomicFile, IsWholeWheneverItsWriterIsKilled) {
  const ScratchFolder folder;
  const std::string even(70'000, 'e'), odd(90'000, 'o');
  write_file_atomically(folder / "a", even);
  for (int round = 0; round < 12; ++round) {
    const pid_t child = spawn([&] {
      for (int i = 0;; ++i) write_file_atomically(folder / "a", i % 2 == 0 ? odd : even);
      return 1;
    });
    std::this_thread::sleep_for(std::chrono::microseconds(1 + 1731 * round));
    ::kill(child, SIGKILL);
    EXPECT_EQ(wait_for(child), 128 + SIGKILL);
    const std::string found = read_text(folder / "a");
    EXPECT_TRUE(found == even || found == odd) << found.size();
    for (const std::string& name : folder.names()) {
      EXPECT_TRUE(name == "a" || is_temporary_name(name)) << name;
    }
  }
  remove_stale_temporaries(folder.path());
  EXPECT_THAT(folder.names(), ElementsAre("a"));
}

TEST(AtomicFile, CleaningTouchesNothingElse) {
  const ScratchFolder folder;
  write_text(folder / "outside.txt", "kept");
  fs::create_directory(folder / "sub");
  write_text(folder / "sub" / "x.blockscale-tmp", "no leading dot");
  write_text(folder / "sub" / ".x.tmp", "another program's");
  fs::create_symlink(folder / "outside.txt", folder / "sub" / ".link.blockscale-tmp");
  fs::create_directory(folder / "sub" / ".folder.blockscale-tmp");
  write_text(folder / "sub" / ".x.1-0.blockscale-tmp", "stale");
  EXPECT_EQ(remove_stale_temporaries(folder / "sub"), 1);
  EXPECT_TRUE(fs::is_directory(folder / "sub" / ".folder.blockscale-tmp"));
  EXPECT_TRUE(fs::is_symlink(folder / "sub" / ".link.blockscale-tmp"));
  EXPECT_EQ(read_text(folder / "outside.txt"), "kept");
  expect_error(ErrorCode::not_found, (folder / "none").string(), "cannot list",
               [&] { remove_stale_temporaries(folder / "none"); });
}

}  // namespace
}  // namespace blockscale
