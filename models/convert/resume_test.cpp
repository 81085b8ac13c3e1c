// Conversions that are stopped: what stays, what resume reuses, what it refuses.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "models/convert/conversion_testing.h"

namespace blockscale {
namespace {

namespace fs = std::filesystem;
using test::contents;
using test::expect_error;

class ResumeTest : public test::SmallConversion {
 protected:
  void SetUp() override {
    SmallConversion::SetUp();
    options_.shard_bytes = 21'000;
    options_.threads = 1;
    convert(plain_, folder_ / "whole", options_);
    expected_ = contents(folder_ / "whole");
  }
  /// Runs until the progress callback was called `calls` times. False if it finished before.
  bool run_interrupted(int calls) {
    ConvertOptions options = options_;
    options.progress = [&calls](const ConvertProgress&) { return --calls > 0; };
    try {
      convert(plain_, out_, options);
      return false;
    } catch (const Error& error) {
      EXPECT_STREQ(error_code_name(error.code()), "interrupted") << error.what();
      EXPECT_FALSE(fs::exists(out_));
      EXPECT_TRUE(fs::exists(staging_));
      return true;
    }
  }
  ConvertReport resume() {
    ConvertOptions options = options_;
    options.resume = true;
    return convert(plain_, out_, options);
  }
  void expect_complete() {
    EXPECT_EQ(contents(out_), expected_);
    EXPECT_FALSE(fs::exists(staging_));
  }
  std::vector<fs::path> finished_shards() const {
    std::vector<fs::path> shards;
    for (const auto& entry : fs::directory_iterator(staging_ / "result")) {
      if (entry.path().extension() == ".safetensors") shards.push_back(entry.path());
    }
    std::sort(shards.begin(), shards.end());
    return shards;
  }

  std::map<std::string, std::string> expected_;
};

TEST_F(ResumeTest, FromEveryPointTheResultIsTheSame) {
  int most_reused = 0;
  for (int calls = 1; run_interrupted(calls); calls += 5) {
    SCOPED_TRACE(calls);
    most_reused = std::max(most_reused, resume().shards_reused);
    expect_complete();
    fs::remove_all(out_);
  }
  EXPECT_GE(most_reused, 2);
}

TEST_F(ResumeTest, InSeveralSteps) {
  int runs = 0;
  for (int calls = 8; run_interrupted(calls); calls += 2) {
    options_.resume = true;
    ++runs;
  }
  EXPECT_GE(runs, 2);
  expect_complete();
}

TEST_F(ResumeTest, WithoutItAnUnfinishedConversionIsStartedAnew) {
  ASSERT_TRUE(run_interrupted(18));
  const ConvertReport report = convert(plain_, out_, options_);
  EXPECT_TRUE(report.partial_discarded);
  EXPECT_EQ(report.shards_reused, 0);
  expect_complete();
}

TEST_F(ResumeTest, WithNothingToResumeItConverts) {
  EXPECT_FALSE(resume().partial_discarded);
  expect_complete();
  expect_error(ErrorCode::already_exists, out_.string(), "exists", [&] { resume(); });
}

TEST_F(ResumeTest, DamagedShardsAreMadeAgain) {
  ASSERT_TRUE(run_interrupted(18));
  const std::vector<fs::path> shards = finished_shards();
  ASSERT_GE(shards.size(), 2u);
  std::string bytes = test::read_text(shards[0]);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  test::write_text(shards[0], bytes);
  EXPECT_EQ(resume().shards_reused, static_cast<int>(shards.size()) - 1);
  expect_complete();
}

TEST_F(ResumeTest, OtherOptionsOrAnotherSourceAreRefused) {
  ASSERT_TRUE(run_interrupted(18));
  const auto refuse = [&](const std::string& key, auto change) {
    ConvertOptions options = options_;
    options.resume = true;
    change(options);
    expect_error(ErrorCode::invalid_argument, "resume", "differs in " + key,
                 [&] { convert(plain_, out_, options); });
  };
  refuse("dialect", [](ConvertOptions& o) { o.dialect = Dialect::modelopt; });
  refuse("exclude", [](ConvertOptions& o) { o.exclude = {"*o_proj"}; });
  refuse("shard_bytes", [](ConvertOptions& o) { o.shard_bytes = 30'000; });
  refuse("map", [](ConvertOptions& o) { o.map = {{"*o_proj", Recipe::mxfp4}}; });
  refuse("experts_layout", [](ConvertOptions& o) { o.experts_layout = ExpertsLayout::out_in; });
  refuse("share_tensor_scales", [](ConvertOptions& o) { o.share_tensor_scales = true; });
  refuse("allow_nonfinite", [](ConvertOptions& o) { o.allow_nonfinite = true; });
  fs::last_write_time(plain_ / "model.safetensors",
                      fs::last_write_time(plain_ / "model.safetensors") + std::chrono::seconds(1));
  refuse("source", [](ConvertOptions&) {});
  test::write_text(plain_ / "config.json", R"({"model_type": "mixtral", "a": 1})");
  refuse("configuration", [](ConvertOptions&) {});
  EXPECT_TRUE(fs::exists(staging_));  // refusing destroys nothing
}

TEST_F(ResumeTest, ThreadsAndMemoryMayChange) {
  ASSERT_TRUE(run_interrupted(18));
  options_.threads = 3;
  options_.memory_bytes = 1 << 20;
  EXPECT_GE(resume().shards_reused, 1);
  expect_complete();
}

TEST_F(ResumeTest, AfterAKillBetweenPublishingAndCleaning) {
  // What the folders hold at that moment: the result is in its place, the manifest says so.
  ASSERT_TRUE(run_interrupted(18));
  fs::remove_all(staging_ / "result");
  fs::copy(folder_ / "whole", out_);
  test::Json manifest = test::Json::parse(test::read_text(staging_ / "manifest.json"));
  struct stat status;
  ASSERT_EQ(::stat(out_.c_str(), &status), 0);
  manifest["publishing"] = {{"published", {{"device", status.st_dev}, {"inode", status.st_ino}}},
                            {"replaced", nullptr}};
  test::write_text(staging_ / "manifest.json", manifest.dump());
  const ConvertReport report = resume();
  EXPECT_GT(report.shards_reused, 0);
  expect_complete();
}

TEST_F(ResumeTest, AManifestThatIsNoneIsRefused) {
  ASSERT_TRUE(run_interrupted(18));
  for (const char* text : {"{", "[]", "{\"identity\": 1, \"shards\": {}}", "{\"identity\": {}}",
                           R"({"identity": {}, "shards": {}, "files": [7]})"}) {
    test::write_text(staging_ / "manifest.json", text);
    EXPECT_THROW(resume(), Error) << text;
    EXPECT_FALSE(fs::exists(out_));
  }
  // Shards that are recorded as something else are made again.
  fs::remove_all(staging_);
  ASSERT_TRUE(run_interrupted(18));
  test::Json manifest = test::Json::parse(test::read_text(staging_ / "manifest.json"));
  for (auto& [name, shard] : manifest["shards"].items()) shard = 7;
  test::write_text(staging_ / "manifest.json", manifest.dump());
  EXPECT_EQ(resume().shards_reused, 0);
  expect_complete();
}

TEST_F(ResumeTest, TwoProcessesDoNotShareADestination) {
  const models::Staging other(out_, false, test::Json::object(), {}, false, 1);
  expect_error(ErrorCode::already_exists, staging_.string(), "is in use",
               [&] { convert(plain_, out_, options_); });
}

TEST_F(ResumeTest, ADestinationThatAppearsMeanwhileIsNotReplaced) {
  ConvertOptions options = options_;
  options.progress = [&](const ConvertProgress&) {
    fs::create_directories(out_);
    return true;
  };
  expect_error(ErrorCode::already_exists, out_.string(), "appeared during the conversion",
               [&] { convert(plain_, out_, options); });
  EXPECT_TRUE(fs::is_empty(out_));
}

TEST_F(ResumeTest, ProgressCountsEverySourceByteOnce) {
  std::uint64_t last = 0;
  std::uint64_t total = 0;
  bool grows = true;
  options_.threads = 3;
  options_.progress = [&](const ConvertProgress& progress) {
    grows = grows && progress.source_bytes_done >= last;
    last = progress.source_bytes_done;
    total = progress.source_bytes_total;
    return true;
  };
  const ConvertReport report = convert(plain_, out_, options_);
  EXPECT_TRUE(grows);
  EXPECT_EQ(total, report.source_bytes);
  EXPECT_EQ(last, total);
}

TEST(HashFile, SeesEveryByteAndIsTheSameForAnyThreads) {
  const test::ScratchFolder folder;
  std::string bytes(2'500'001, 'x');
  test::write_text(folder / "a", bytes);
  const std::uint64_t hash = models::hash_file(folder / "a", 1);
  EXPECT_EQ(models::hash_file(folder / "a", 3), hash);
  for (const std::size_t i : {std::size_t{0}, std::size_t{1'048'576}, bytes.size() - 1}) {
    std::string changed = bytes;
    changed[i] = 'y';
    test::write_text(folder / "a", changed);
    EXPECT_NE(models::hash_file(folder / "a", 1), hash) << i;
  }
  test::write_text(folder / "a", bytes + '\0');
  EXPECT_NE(models::hash_file(folder / "a", 1), hash);
  test::write_text(folder / "a", "");
  EXPECT_NO_THROW(models::hash_file(folder / "a", 1));
}

}  // namespace
}  // namespace blockscale
