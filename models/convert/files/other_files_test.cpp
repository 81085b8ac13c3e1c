// What a conversion does with the files beside the weights: configurations, links, other weights,
// and files that change or cannot be read.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/convert/conversion_testing.h"
#include "tests/child_process.h"

namespace blockscale {
namespace {

namespace fs = std::filesystem;
using test::contents;
using test::expect_error;
using test::options_for;
using test::read_text;
using test::write_text;
using enum ErrorCode;

class OtherFilesTest : public test::SmallConversion {};

TEST_F(OtherFilesTest, ConfigurationsAreNotReadThroughLinksThatLeaveTheFolder) {
  const fs::path secret = folder_ / "secret.json";
  write_text(secret, "{\"model_type\": \"secret\"}");
  for (const char* name : {"config.json", "hf_quant_config.json"}) {
    fs::remove(plain_ / "config.json");
    fs::create_symlink(secret, plain_ / name);
    expect_error(corrupt_file, (plain_ / name).string(), "is a link that leaves its folder, to",
                 [&] { Checkpoint::open(plain_); });
    expect_error(corrupt_file, (plain_ / name).string(), "is a link that leaves its folder, to",
                 [&] { run(); });
    fs::remove(plain_ / name);
  }
  fs::create_symlink("nowhere.json", plain_ / "config.json");
  expect_error(not_found, (plain_ / "config.json").string(), "No such file", [&] { run(); });
  fs::remove(plain_ / "config.json");
  write_text(plain_ / "real.json", "{\"model_type\": \"mixtral\"}");
  fs::create_symlink("real.json", plain_ / "config.json");
  EXPECT_NO_THROW(run());
}

TEST_F(OtherFilesTest, AHuggingFaceCacheIsConvertedFromItsRootOrSnapshot) {
  const fs::path model = folder_ / "models--org--name";
  const fs::path snapshot = model / "snapshots" / "0123";
  fs::create_directories(snapshot / "1_Pooling");
  fs::create_directories(model / "blobs");
  write_text(plain_ / "tokenizer.json", "{}");
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    fs::copy_file(plain_ / name, model / "blobs" / (std::string("blob-of-") + name));
    fs::create_symlink(fs::path("../../blobs") / (std::string("blob-of-") + name), snapshot / name);
  }
  write_text(model / "blobs" / "pool", "{\"pool\": 1}");
  fs::create_symlink("../../../blobs/pool", snapshot / "1_Pooling" / "config.json");
  convert(model, out_, options_);
  EXPECT_EQ(read_text(out_ / "1_Pooling" / "config.json"), "{\"pool\": 1}");
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(out_ / "tokenizer.json")));
  convert(snapshot, work_ / "second", options_);
  EXPECT_EQ(contents(work_ / "second"), contents(out_));
}

/// Puts one of every kind of file that stays behind beside the model, and tells their names.
std::map<std::string, std::string> add_left_behind(const fs::path& folder) {
  const std::map<std::string, std::string> files = {
      {"pytorch_model.bin", "another format"},
      {"pytorch_model-00001-of-00002.bin", "another format"},
      {"consolidated.00.pth", "another format"},
      {"model-Q4_K_M.gguf", "another format"},
      {"tf_model.h5", "another format"},
      {"training_args.bin", "training run"},
      {"optimizer.pt", "training run"},
      {"model.onnx", "another runtime"},
      {"original/", "publisher's own layout"},
      {"onnx/", "another runtime"},
      {"checkpoint-500/", "training run"}};
  for (const auto& [name, reason] : files) {
    if (name.ends_with('/')) fs::create_directories(folder / name);
    write_text(name.ends_with('/') ? folder / name / "data" : folder / name, "1234567");
  }
  return files;
}

TEST_F(OtherFilesTest, OtherWeightsStayBehindAndAreListed) {
  const auto expected = add_left_behind(plain_);
  fs::create_directories(plain_ / "2_Dense");
  fs::create_directories(plain_ / "extra");
  write_text(plain_ / "modules.json", R"([{"path": ""}, {"path": "2_Dense"}])");
  write_text(plain_ / "2_Dense" / "pytorch_model.bin", "a part of the model");
  write_text(plain_ / "extra" / "pytorch_model.bin", "1234567");
  write_text(plain_ / "tokenizer.model", "sentencepiece");
  write_text(plain_ / "tokenizer.json", "{}");
  ASSERT_EQ(::mkfifo((plain_ / "pipe").c_str(), 0600), 0);
  const ConvertReport report = run();
  std::vector<std::string> names;
  for (const auto& [name, text] : contents(out_)) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"2_Dense/pytorch_model.bin", "config.json",
                                             "model.safetensors", "modules.json", "tokenizer.json",
                                             "tokenizer.model"}));
  std::map<std::string, std::string> found;
  for (const NotCopied& file : report.not_copied) {
    found[file.path] = file.reason;
    EXPECT_EQ(file.bytes, file.path == "pipe" ? 0u : 7u) << file.path;
  }
  EXPECT_EQ(found.size(), expected.size() + 2);
  EXPECT_THAT(found["pipe"], ::testing::HasSubstr("no regular file"));
  EXPECT_THAT(found["extra/pytorch_model.bin"], ::testing::HasSubstr("another format"));
  for (const auto& [name, reason] : expected) {
    EXPECT_THAT(found[name], ::testing::HasSubstr(reason)) << name;
  }
  // A second run takes what the first one made as it is.
  EXPECT_TRUE(convert(out_, work_ / "next", options_).not_copied.empty());

  options_.copy_all = true;
  options_.overwrite = true;
  const ConvertReport all = run();
  ASSERT_EQ(all.not_copied.size(), 1u);
  EXPECT_EQ(all.not_copied[0].path, "pipe");
  EXPECT_EQ(read_text(out_ / "original" / "data"), "1234567");
  EXPECT_EQ(read_text(out_ / "consolidated.00.pth"), "1234567");
  EXPECT_FALSE(fs::exists(out_ / "model.safetensors.index.json"));
}

TEST_F(OtherFilesTest, TheResultIsReadableWhateverSafetensorsLieBesideIt) {
  // Two shards by an index, and beside them a whole model and another index.
  options_.shard_bytes = 60'000;
  convert(plain_, folder_ / "sharded", options_for({Recipe::bf16, Dialect::plain}));
  ConvertOptions shards = options_for({Recipe::bf16, Dialect::plain});
  shards.shard_bytes = 60'000;
  shards.overwrite = true;
  convert(plain_, folder_ / "sharded", shards);
  const fs::path source = folder_ / "sharded";
  const fs::path index = source / "model.safetensors.index.json";
  ASSERT_TRUE(fs::exists(index));
  fs::copy_file(plain_ / "model.safetensors", source / "model.safetensors");
  fs::copy_file(plain_ / "model.safetensors", source / "consolidated.safetensors");
  const auto names_of = [](const ConvertReport& report) {
    std::vector<std::string> names;
    for (const NotCopied& file : report.not_copied) names.push_back(file.path);
    return names;
  };
  options_.shard_bytes = 1 << 30;
  EXPECT_EQ(names_of(convert(source, out_, options_)),
            (std::vector<std::string>{"consolidated.safetensors", "model.safetensors"}));
  EXPECT_FALSE(fs::exists(out_ / "consolidated.safetensors"));
  const std::size_t tensors = Checkpoint::open(out_).tensors().size();

  options_.copy_all = true;
  options_.overwrite = true;
  EXPECT_EQ(names_of(convert(source, out_, options_)),
            (std::vector<std::string>{"model.safetensors"}));  // the result's own name
  EXPECT_TRUE(fs::exists(out_ / "consolidated.safetensors"));
  EXPECT_EQ(Checkpoint::open(out_).tensors().size(), tensors);
  EXPECT_EQ(Checkpoint::open(out_).dialect(), Dialect::compressed_tensors);

  fs::copy_file(index, source / "same.safetensors.index.json");  // the same index again
  test::write_text(source / "other.safetensors.index.json", test::read_text(index) + "\n");
  EXPECT_EQ(names_of(convert(index, out_, options_)),
            (std::vector<std::string>{"model.safetensors", "other.safetensors.index.json"}));
  EXPECT_EQ(Checkpoint::open(out_).tensors().size(), tensors);
}

TEST_F(OtherFilesTest, WithoutAnIndexTheRestIsListedAsWell) {
  const std::size_t tensors = Checkpoint::open(plain_).tensors().size();
  const std::vector<std::string> others = {"adapter_model.safetensors", "consolidated.safetensors",
                                           "ema.safetensors", "model-00001-of-00002.safetensors",
                                           "model.fp16.safetensors"};
  for (const std::string& name : others) {
    test::write_store(plain_ / name, {test::f32_tensor("lora.q_proj.weight", {64, 64}, 1)});
  }
  const ConvertReport report = run();
  EXPECT_EQ(report.tensors.size(), tensors);
  ASSERT_EQ(report.not_copied.size(), others.size());
  for (std::size_t i = 0; i < others.size(); ++i) {
    EXPECT_EQ(report.not_copied[i].path, others[i]);
    EXPECT_EQ(report.not_copied[i].reason, "weights that are not part of the checkpoint");
    EXPECT_FALSE(fs::exists(out_ / others[i]));
  }
  options_.copy_all = true;
  options_.overwrite = true;
  EXPECT_EQ(run().not_copied.size(), 0u);
  EXPECT_TRUE(fs::exists(out_ / "ema.safetensors"));
  EXPECT_EQ(Checkpoint::open(out_).tensors().size(), tensors);
  fs::remove(plain_ / "model.safetensors");
  expect_error(not_found, plain_.string(), "\"model-00002-of-00002.safetensors\" is missing",
               [&] { run(); });
}

TEST_F(OtherFilesTest, FilesThatChangeMeanwhileAreNoticed) {
  write_text(plain_ / "tokenizer.json", "{}");
  ConvertOptions options = options_;
  options.progress = [&](const ConvertProgress&) {
    write_text(plain_ / "tokenizer.json", "{\"longer\": 1}");
    return true;
  };
  expect_error(io, (plain_ / "tokenizer.json").string(), "changed during the conversion",
               [&] { convert(plain_, out_, options); });
  // A link that takes its place is not followed to a stranger's file.
  fs::remove(plain_ / "tokenizer.json");
  write_text(plain_ / "tokenizer.json", "{}");
  options.progress = [&](const ConvertProgress&) {
    fs::remove(plain_ / "tokenizer.json");
    fs::create_symlink("/etc/hostname", plain_ / "tokenizer.json");
    return true;
  };
  expect_error(io, (plain_ / "tokenizer.json").string(), "changed during the conversion",
               [&] { convert(plain_, out_, options); });
  fs::remove(plain_ / "tokenizer.json");
  options.progress = [&](const ConvertProgress&) {
    fs::last_write_time(plain_ / "model.safetensors", fs::file_time_type::clock::now());
    return true;
  };
  expect_error(io, plain_.string(), "changed during the conversion",
               [&] { convert(plain_, out_, options); });
  EXPECT_TRUE(fs::is_empty(work_));
}

TEST_F(OtherFilesTest, FilesThatCannotBeReadAreKnownBeforeTheWork) {
  const int result = test::wait_for(test::spawn([&] {
    write_text(plain_ / "tokenizer.json", "{}");
    fs::permissions(plain_ / "tokenizer.json", fs::perms::none);
    for (const fs::path& path : {folder_.path(), work_}) fs::permissions(path, fs::perms(0777));
    if (::geteuid() == 0 && ::setuid(65534) != 0) return 77;
    ConvertOptions options = options_;
    bool began = false;
    options.progress = [&](const ConvertProgress&) { return began = true; };
    try {
      convert(plain_, out_, options);
    } catch (const Error& error) {
      const bool named = error.argument() == (plain_ / "tokenizer.json").string();
      return error.code() == io && named && !began && fs::is_empty(work_) ? 0 : 1;
    }
    return 2;
  }));
  if (result == 77) GTEST_SKIP() << "no right to become another user here";
  EXPECT_EQ(result, 0);
}

}  // namespace
}  // namespace blockscale
