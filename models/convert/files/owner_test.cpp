// Conversions destroy and publish nothing that is not theirs: what is at the destination and in the
// staging folder. What lies in the source's folder: other_files_test.cpp.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "models/convert/conversion_testing.h"
#include "tests/child_process.h"

namespace blockscale {
namespace {

namespace fs = std::filesystem;
using test::contents;
using test::expect_error;
using test::read_text;
using test::write_text;
using enum ErrorCode;

class OwnerTest : public test::SmallConversion {
 protected:
  void refuse(ErrorCode code, const fs::path& argument, const std::string& reason) const {
    SCOPED_TRACE(reason);
    expect_error(code, argument.string(), reason, [&] { run(); });
  }
  /// Leaves a folder of this conversion with finished shards.
  void interrupt() const {
    ConvertOptions options = options_;
    int calls = 18;
    options.threads = 1;
    options.progress = [&calls](const ConvertProgress&) { return --calls > 0; };
    expect_error(interrupted, "convert", "was stopped", [&] { convert(plain_, out_, options); });
    ASSERT_TRUE(fs::exists(staging_ / "manifest.json"));
  }
};

TEST_F(OwnerTest, OnlyRegularFilesAndCheckpointsAreReplaced) {
  const fs::path file = plain_ / "model.safetensors";
  options_.overwrite = true;
  const auto refuse_both = [&](const fs::path& destination, const std::string& reason) {
    SCOPED_TRACE(destination);
    const mode_t type = Folder::open(work_).status(destination.filename())->st_mode;
    for (const fs::path& source : {plain_, file}) {
      for (const bool overwrite : {false, true}) {
        options_.overwrite = overwrite;
        expect_error(invalid_argument, destination.string(), reason,
                     [&] { convert(source, destination, options_); });
      }
    }
    EXPECT_EQ(Folder::open(work_).status(destination.filename())->st_mode, type);
  };
  ASSERT_EQ(::mkfifo((work_ / "fifo").c_str(), 0600), 0);
  ASSERT_EQ(::mknod((work_ / "socket").c_str(), S_IFSOCK | 0600, 0), 0);
  refuse_both(work_ / "fifo", "is a FIFO, only regular files and folders are replaced");
  refuse_both(work_ / "socket", "is a socket");
  fs::create_symlink("nothing", work_ / "nowhere");
  refuse_both(work_ / "nowhere", "is a link that leads nowhere");
  const bool devices = ::mknod((work_ / "device").c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0;
  for (const char* name : {"fifo", "device"}) {
    if (!devices && std::string(name) == "device") continue;
    const fs::path link = work_ / (std::string("to-") + name);
    fs::create_symlink(name, link);
    options_.overwrite = true;
    expect_error(invalid_argument, (work_ / name).string(), "only regular files and folders",
                 [&] { convert(file, link, options_); });
    EXPECT_TRUE(fs::is_other(fs::status(link)) || fs::is_fifo(link) || fs::is_character_file(link));
  }
  // A folder into which somebody put a model, among other things.
  options_.overwrite = true;
  fs::create_directory(out_);
  write_text(out_ / "letter.txt", "dear");
  fs::copy_file(file, out_ / "model.safetensors");
  refuse(already_exists, out_, "overwrite does not replace it");
  EXPECT_EQ(read_text(out_ / "letter.txt"), "dear");
  fs::remove(out_ / "letter.txt");
  EXPECT_NO_THROW(run());
  if (!devices) GTEST_SKIP() << "no right to make device nodes here; the rest passed";
  refuse_both(work_ / "device", "is a device, only regular files and folders are replaced");
}

TEST_F(OwnerTest, DestinationsThatAreReadAreRefused) {
  const fs::path file = plain_ / "model.safetensors";
  options_.overwrite = true;
  const auto refuse_as = [&](const fs::path& source, const fs::path& destination,
                             const std::string& reason) {
    SCOPED_TRACE(reason);
    const std::string before = read_text(file);
    expect_error(invalid_argument, "destination", reason,
                 [&] { convert(source, destination, options_); });
    EXPECT_EQ(read_text(file), before);
  };
  fs::create_symlink(file, work_ / "link.safetensors");
  refuse_as(work_ / "link.safetensors", file, "is the source itself");
  fs::create_hard_link(file, work_ / "same.safetensors");
  refuse_as(file, work_ / "same.safetensors", "is the source itself");
  fs::create_directory_symlink(plain_, work_ / "again");
  refuse_as(plain_, work_ / "again", "lies in the source");
  refuse_as(plain_, work_ / "again" / "sub", "lies in the source");
  // What belongs to a Hugging Face cache is more than the snapshot.
  const fs::path cached = work_ / "models--org--name";
  fs::create_directories(cached / "snapshots");
  fs::copy(plain_, cached / "snapshots" / "rev");
  refuse_as(cached, cached / "out", "lies in the source");
  // Activation scales are read as well.
  write_text(work_ / "scales.safetensors", "x");
  options_.activation_scales = work_ / "scales.safetensors";
  refuse_as(file, work_ / "scales.safetensors", "is or holds the activation scales");
  fs::create_directory(out_);
  write_text(out_ / "scales.json", "{}");
  options_.activation_scales = out_ / "scales.json";
  refuse_as(plain_, out_, "is or holds the activation scales");
}

TEST_F(OwnerTest, AStagingFolderThatIsALinkIsNotEntered) {
  const fs::path home = folder_ / "home";
  fs::create_directories(home / "result");
  write_text(home / "letter.txt", "dear");
  write_text(home / "result" / "diary.txt", "today");
  const auto before = contents(home);
  fs::create_directory_symlink(home, staging_);
  for (const bool resume : {false, true}) {
    options_.resume = resume;
    refuse(already_exists, staging_, "is a link, not the folder of an unfinished conversion");
    EXPECT_EQ(contents(home), before);
  }
  fs::remove(staging_);
  write_text(staging_, "a file");
  refuse(already_exists, staging_, "is a regular file, not the folder");
  EXPECT_EQ(read_text(staging_), "a file");
  // Nor are links inside it.
  fs::remove(staging_);
  interrupt();
  fs::remove_all(staging_ / "result");
  fs::create_directory_symlink(home, staging_ / "result");
  refuse(already_exists, staging_, "holds \"result\", which no conversion");
  fs::remove(staging_ / "result");
  fs::rename(staging_ / "manifest.json", home / "manifest.json");
  fs::create_symlink(home / "manifest.json", staging_ / "manifest.json");
  refuse(corrupt_file, staging_ / "manifest.json", "is no manifest of a conversion");
  EXPECT_EQ(read_text(home / "letter.txt"), "dear");
}

TEST_F(OwnerTest, AFolderWithoutOurManifestIsLeftAlone) {
  fs::create_directories(staging_ / "result");
  write_text(staging_ / "letter.txt", "dear");
  for (const bool resume : {false, true}) {
    options_.resume = resume;
    refuse(already_exists, staging_, "holds \"letter.txt\", which no conversion");
  }
  write_text(staging_ / "manifest.json", "{\"name\": \"an extension\"}");
  refuse(corrupt_file, staging_ / "manifest.json", "is no manifest of a conversion");
  EXPECT_EQ(read_text(staging_ / "letter.txt"), "dear");
  EXPECT_EQ(contents(staging_).size(), 2u);
  // An empty one is what a process that was killed at once leaves.
  fs::remove_all(staging_);
  fs::create_directory(staging_);
  options_.resume = false;
  EXPECT_NO_THROW(run());
}

TEST_F(OwnerTest, AStrangersFileInTheStagingFolderIsNeitherPublishedNorDeleted) {
  options_.shard_bytes = 21'000;
  interrupt();
  for (const std::string path : {"letter.txt", "result/letter.txt", "result/sub/letter.txt"}) {
    fs::create_directories((staging_ / path).parent_path());
    write_text(staging_ / path, "dear");
    for (const bool resume : {false, true}) {
      options_.resume = resume;
      refuse(already_exists, staging_, "which no conversion to this destination made");
      EXPECT_EQ(read_text(staging_ / path), "dear");
      EXPECT_FALSE(fs::exists(out_));
    }
    fs::remove(staging_ / path);
  }
  fs::remove(staging_ / "result" / "sub");
  fs::create_symlink("/etc/hostname", staging_ / "result" / "tokenizer.json");
  refuse(already_exists, staging_, "holds \"result/tokenizer.json\"");
  fs::remove(staging_ / "result" / "tokenizer.json");
  options_.resume = true;
  EXPECT_GE(run().shards_reused, 1);
  EXPECT_FALSE(fs::exists(staging_));
}

TEST_F(OwnerTest, AFileThatAppearsInTheResultMeanwhileStopsThePublication) {
  ConvertOptions options = options_;
  options.progress = [&](const ConvertProgress&) {
    write_text(staging_ / "result" / "letter.txt", "dear");
    return true;
  };
  expect_error(already_exists, staging_.string(), "holds \"result/letter.txt\"",
               [&] { convert(plain_, out_, options); });
  EXPECT_FALSE(fs::exists(out_));
  EXPECT_EQ(read_text(staging_ / "result" / "letter.txt"), "dear");
  fs::remove(staging_ / "result" / "letter.txt");
  options_.resume = true;
  EXPECT_EQ(run().shards_reused, 1);
  EXPECT_FALSE(fs::exists(out_ / "letter.txt"));
}

TEST_F(OwnerTest, WorkSurvivesAMistakeInTheCommandThatResumesIt) {
  options_.shard_bytes = 21'000;
  interrupt();
  options_.resume = true;
  fs::create_directory(out_);
  refuse(already_exists, out_, "exists; overwrite replaces it");
  fs::remove(out_);
  ASSERT_EQ(::mkfifo(out_.c_str(), 0600), 0);
  refuse(invalid_argument, out_, "is a FIFO");
  fs::remove(out_);
  options_.memory_bytes = 1000;
  refuse(invalid_argument, "memory_bytes", "is 1000, must be at least");
  options_.memory_bytes = 1 << 30;
  EXPECT_GE(run().shards_reused, 1);
}

TEST_F(OwnerTest, AnotherUsersStagingFolderIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give folders away";
  interrupt();
  ASSERT_EQ(::chown(staging_.c_str(), 12345, 12345), 0);
  refuse(already_exists, staging_, "belongs to user 12345");
  ASSERT_EQ(::chown(staging_.c_str(), 0, 0), 0);
  const fs::path shard = staging_ / "result" / "model.safetensors";
  write_text(shard, "another user's");
  ASSERT_EQ(::chown(shard.c_str(), 12345, 12345), 0);
  refuse(already_exists, staging_, "holds \"result/model.safetensors\"");
  EXPECT_EQ(read_text(shard), "another user's");
}

TEST_F(OwnerTest, TheStagingFolderIsPrivateAndPermissionsAreHandedDown) {
  const mode_t before = ::umask(022);
  fs::permissions(plain_ / "model.safetensors", fs::perms(0640));
  write_text(plain_ / "run.sh", "#!/bin/sh");
  write_text(plain_ / "token", "secret");
  fs::permissions(plain_ / "run.sh", fs::perms(04777));
  fs::permissions(plain_ / "token", fs::perms(0400));
  ConvertOptions options = options_;
  mode_t staged = 0;
  const auto mode_of = [](const fs::path& path) {
    struct stat status = {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
    return status.st_mode & 07777;
  };
  options.progress = [&](const ConvertProgress&) {
    staged = mode_of(staging_);
    return true;
  };
  convert(plain_, out_, options);
  EXPECT_EQ(staged, 0700u);
  EXPECT_EQ(mode_of(out_), 0755u);
  EXPECT_EQ(mode_of(out_ / "model.safetensors"), 0640u);
  EXPECT_EQ(mode_of(out_ / "config.json"), 0640u);
  EXPECT_EQ(mode_of(out_ / "run.sh"), 0755u);
  EXPECT_EQ(mode_of(out_ / "token"), 0600u);
  fs::permissions(out_, fs::perms(0710));
  options.overwrite = true;
  convert(plain_, out_, options);
  EXPECT_EQ(mode_of(out_), 0710u);
  ::umask(before);
}

/// Runs `body` in a child with a small disk at `work`; 77 if this machine does not allow it.
int on_small_disk(const fs::path& work, const std::string& size, const std::function<int()>& body) {
  return test::wait_for(test::spawn([&] {
    const int flags = ::geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER;
    if (::unshare(flags) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", work.c_str(), "tmpfs", 0, ("size=" + size).c_str()) != 0) {
      return 77;
    }
    return body();
  }));
}

TEST_F(OwnerTest, AFullDiskIsForeseen) {
  write_text(plain_ / "vocabulary.txt", std::string(200'000, 'x'));
  const int result = on_small_disk(work_, "128k", [&] {
    try {
      run();
    } catch (const NoSpaceError& error) {
      const std::string text = error.what();
      const bool says = error.code() == io && error.argument() == out_.string() &&
                        text.find("bytes more, its file system has") != std::string::npos;
      return says && fs::is_empty(work_) ? 0 : 1;
    }
    return 2;
  });
  if (result == 77) GTEST_SKIP() << "no right to mount a small tmpfs here";
  EXPECT_EQ(result, 0);
}

TEST_F(OwnerTest, FinishedShardsOutliveAFullDisk) {
  options_.shard_bytes = 21'000;
  options_.threads = 1;
  convert(plain_, folder_ / "whole", options_);
  const auto expected = contents(folder_ / "whole");
  const int result = on_small_disk(work_, "1m", [&] {
    ConvertOptions options = options_;
    options.progress = [&](const ConvertProgress&) {
      // Somebody else fills the disk once a shard is finished.
      std::error_code ignored;
      if (!fs::exists(staging_ / "result" / expected.begin()->first, ignored) &&
          test::Json::parse(read_text(staging_ / "manifest.json"))["shards"].empty()) {
        return true;
      }
      std::ofstream(work_ / "filler") << std::string(2'000'000, 'x') << std::flush;
      return true;
    };
    try {
      convert(plain_, out_, options);
      return 1;
    } catch (const NoSpaceError& error) {
      if (std::string(error.what()).find("resume continues it") == std::string::npos) return 2;
    }
    if (fs::exists(out_) || !fs::exists(staging_ / "manifest.json")) return 3;
    options_.resume = true;
    try {  // still full: nothing is lost
      run();
      return 4;
    } catch (const NoSpaceError&) {
      if (!fs::exists(staging_ / "manifest.json")) return 5;
    }
    fs::remove(work_ / "filler");
    if (run().shards_reused < 1) return 6;
    return contents(out_) == expected && !fs::exists(staging_) ? 0 : 7;
  });
  if (result == 77) GTEST_SKIP() << "no right to mount a small tmpfs here";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace blockscale
