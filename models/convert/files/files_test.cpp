// Conversions as files: shards, other files, memory, refusals, and what a failure leaves.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>

#include "models/convert/testing.h"

namespace blockscale {
namespace {

namespace fs = std::filesystem;
using test::contents;
using test::expect_error;
using test::Json;
using test::options_for;
using test::part;
using test::Target;
using test::TestTensor;

const Target kNvfp4 = {Recipe::nvfp4, Dialect::compressed_tensors};

class ConvertFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(folder_ / "work");
    test::write_checkpoint(plain_, test::small_model(), {{"model_type", "mixtral"}});
  }
  /// Expects the error, and that neither a destination nor a staging folder is left.
  void expect_refused(ErrorCode code, const std::string& argument, const std::string& reason,
                      const ConvertOptions& options) {
    SCOPED_TRACE(reason);
    expect_error(code, argument, reason, [&] { convert(plain_, out_, options); });
    EXPECT_TRUE(fs::is_empty(folder_ / "work"));
  }

  test::ScratchFolder folder_;
  const fs::path plain_ = folder_ / "plain";
  const fs::path out_ = folder_ / "work" / "out";
};

TEST_F(ConvertFilesTest, ShardsHoldWholeWeightsInOrder) {
  convert(plain_, folder_ / "work" / "one", options_for(kNvfp4));
  ConvertOptions options = options_for(kNvfp4);
  options.shard_bytes = 21'000;
  const ConvertReport report = convert(plain_, out_, options);
  const Json index = Json::parse(test::read_text(out_ / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], report.bytes);
  const Checkpoint sharded = Checkpoint::open(out_);
  ASSERT_GT(sharded.store().files().size(), 2u);
  for (const SafetensorsFile& file : sharded.store().files()) {
    std::uint64_t bytes = 0;
    for (const TensorInfo& info : file.tensors()) bytes += info.bytes;
    EXPECT_LE(bytes, options.shard_bytes);
  }
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (!name.ends_with("_packed")) continue;
    const std::string weight = name.substr(0, name.size() - 7);
    EXPECT_EQ(index["weight_map"][weight + "_scale"], shard);
  }
  const Checkpoint one = Checkpoint::open(folder_ / "work" / "one");
  EXPECT_EQ(one.store().files()[0].path().filename(), "model.safetensors");
  ASSERT_EQ(one.store().tensors().size(), sharded.store().tensors().size());
  for (const auto& [name, entry] : one.store().tensors()) {
    EXPECT_EQ(part(one, name), part(sharded, name));
  }
  // A tensor larger than a shard has one of its own; sharded sources are read alike.
  options.shard_bytes = 1;
  const fs::path tiny = folder_ / "work" / "tiny";
  convert(out_, tiny, options);
  for (const auto& [name, entry] : one.store().tensors()) {
    EXPECT_EQ(part(Checkpoint::open(tiny), name), part(one, name));
  }
}

TEST_F(ConvertFilesTest, NeitherThreadsNorMemoryChangeTheResult) {
  const fs::path big = folder_ / "big";
  test::write_checkpoint(big, {test::f32_tensor("a.q_proj.weight", {700, 1024}, 1),
                               test::f32_tensor("a.k_proj.weight", {300, 1024}, 2)});
  for (const Target& target : {kNvfp4, Target{Recipe::fp8_128x128, Dialect::deepseek},
                               Target{Recipe::fp8_tensor, Dialect::compressed_tensors}}) {
    SCOPED_TRACE(test::name_of(target));
    ConvertOptions options = options_for(target);
    options.overwrite = true;
    options.threads = 1;
    convert(big, out_, options);
    const auto expected = contents(out_);
    for (const std::uint64_t memory : {std::uint64_t{310'000}, std::uint64_t{1'300'000}}) {
      options.threads = 4;
      options.memory_bytes = memory;
      convert(big, out_, options);
      EXPECT_EQ(contents(out_), expected);
    }
    fs::remove_all(out_);
  }
  ConvertOptions options = options_for(kNvfp4);
  options.memory_bytes = 100'000;
  expect_error(ErrorCode::invalid_argument, "memory_bytes", "is 100000, must be at least",
               [&] { convert(big, out_, options); });
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(ConvertFilesTest, MisalignedSourcesGiveTheSameBytes) {
  std::vector<TestTensor> tensors = test::small_model();
  tensors.insert(tensors.begin(), {"byte", DType::U8, {1}, "x"});
  test::write_checkpoint(folder_ / "odd", tensors, {{"model_type", "mixtral"}});
  convert(plain_, out_, options_for(kNvfp4));
  convert(folder_ / "odd", folder_ / "work" / "odd", options_for(kNvfp4));
  const Checkpoint a = Checkpoint::open(out_);
  const Checkpoint b = Checkpoint::open(folder_ / "work" / "odd");
  for (const auto& [name, entry] : a.store().tensors()) EXPECT_EQ(part(a, name), part(b, name));
  // What we write is aligned, so that views exist.
  for (const CheckpointTensor& tensor : b.tensors()) {
    if (tensor.dtype == DType::U8) continue;
    EXPECT_NO_THROW(b.view(tensor)) << tensor.name;
  }
}

TEST_F(ConvertFilesTest, OtherFilesGoAlong) {
  fs::create_directories(plain_ / "1_Pooling");
  fs::create_directories(plain_ / ".git");
  fs::create_directories(plain_ / ".other.blockscale-partial" / "result");
  test::write_text(plain_ / "tokenizer.json", "{}");
  test::write_text(plain_ / "1_Pooling" / "config.json", "{\"pool\": 1}");
  test::write_text(plain_ / ".git" / "HEAD", "x");
  test::write_text(plain_ / ".other.blockscale-partial" / "manifest.json", "x");
  test::write_text(plain_ / "pytorch_model.bin", "old weights");
  test::write_text(plain_ / "pytorch_model-00001-of-00002.bin", "old weights");
  fs::create_symlink("tokenizer.json", plain_ / "link.json");
  fs::permissions(plain_ / "tokenizer.json", fs::perms::owner_read);
  convert(plain_, out_, options_for(kNvfp4));
  std::vector<std::string> names;
  for (const auto& [name, text] : contents(out_)) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"1_Pooling/config.json", "config.json", "link.json",
                                             "model.safetensors", "tokenizer.json"}));
  EXPECT_EQ(test::read_text(out_ / "link.json"), "{}");
  EXPECT_FALSE(fs::is_symlink(out_ / "link.json"));

  fs::create_symlink("/etc/hostname", plain_ / "stolen");
  fs::remove_all(out_);
  expect_refused(ErrorCode::corrupt_file, (plain_ / "stolen").string(), "leaves its folder",
                 options_for(kNvfp4));
}

TEST_F(ConvertFilesTest, ThePackageOfModelOptIsLeftBehind) {
  convert(plain_, out_, options_for({Recipe::nvfp4, Dialect::modelopt}));
  EXPECT_TRUE(fs::exists(out_ / "hf_quant_config.json"));
  const fs::path ct = folder_ / "work" / "ct";
  convert(out_, ct, options_for(kNvfp4));
  EXPECT_FALSE(fs::exists(ct / "hf_quant_config.json"));
}

TEST_F(ConvertFilesTest, AFileBecomesAFile) {
  const fs::path file = folder_ / "work" / "out.safetensors";
  ConvertOptions options = options_for(kNvfp4);
  options.shard_bytes = 1;  // a file stays one
  const ConvertReport report = convert(plain_ / "model.safetensors", file, options);
  EXPECT_GT(report.bytes, 0u);
  EXPECT_EQ(Checkpoint::open(file).dialect(), Dialect::compressed_tensors);
  expect_error(ErrorCode::already_exists, file.string(), "overwrite replaces it",
               [&] { convert(plain_ / "model.safetensors", file, options); });
  options.overwrite = true;
  const std::string before = test::read_text(file);
  convert(plain_ / "model.safetensors", file, options);
  EXPECT_EQ(test::read_text(file), before);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "work"), fs::directory_iterator()), 1);
  expect_error(ErrorCode::invalid_argument, "destination", "is the source itself",
               [&] { convert(file, file, options); });
  fs::create_directory(out_);
  expect_error(ErrorCode::already_exists, out_.string(), "is a folder, a file was to be written",
               [&] { convert(plain_ / "model.safetensors", out_, options); });
}

TEST_F(ConvertFilesTest, NonfiniteWeightsAreRefusedByNameAndIndex) {
  const auto with = [&](const std::string& name, std::size_t index, float value) {
    std::vector<TestTensor> tensors = test::small_model();
    for (TestTensor& tensor : tensors) {
      if (tensor.name == name) std::memcpy(tensor.data.data() + 4 * index, &value, sizeof value);
    }
    fs::remove_all(plain_);
    test::write_checkpoint(plain_, tensors, {{"model_type", "mixtral"}});
  };
  const std::string q = "model.layers.0.q_proj.weight";
  const std::string stack = "model.layers.0.mlp.experts.up_proj";
  for (const Target& target :
       {kNvfp4, Target{Recipe::mxfp4, Dialect::compressed_tensors},
        Target{Recipe::fp8_128x128, Dialect::deepseek}, Target{Recipe::bf16, Dialect::plain}}) {
    SCOPED_TRACE(test::name_of(target));
    with(q, 128 * 129 + 5, NAN);
    expect_refused(ErrorCode::nonfinite, q, "holds NaN or infinity at [129, 5]",
                   options_for(target));
    with(stack, 256 * 48 + 255, -INFINITY);
    expect_refused(ErrorCode::nonfinite, stack, "at [1, 0, 255]", options_for(target));
    ConvertOptions options = options_for(target);
    options.allow_nonfinite = true;
    EXPECT_NO_THROW(convert(plain_, out_, options));
    fs::remove_all(out_);
  }
  // What is not converted is not looked at; rounding may overflow.
  with("lm_head.weight", 7, NAN);
  EXPECT_NO_THROW(convert(plain_, out_, options_for(kNvfp4)));
  fs::remove_all(out_);
  with(q, 3, 1e6f);
  expect_refused(ErrorCode::nonfinite, q, "at [0, 3] once rounded",
                 options_for({Recipe::f16, Dialect::plain}));
}

TEST_F(ConvertFilesTest, DestinationsThatAreRefused) {
  const ConvertOptions options = options_for(kNvfp4);
  ConvertOptions overwrite = options;
  overwrite.overwrite = true;
  using enum ErrorCode;
  const auto refuse = [&](ErrorCode code, const std::string& argument, const std::string& reason,
                          const fs::path& destination, const ConvertOptions& with) {
    SCOPED_TRACE(reason);
    expect_error(code, argument, reason, [&] { convert(plain_, destination, with); });
  };
  refuse(invalid_argument, "destination", "is empty", "", options);
  refuse(invalid_argument, "destination", "lies in the source", plain_, overwrite);
  refuse(invalid_argument, "destination", "lies in the source", plain_ / "out", options);
  refuse(invalid_argument, "destination", "holds the source", folder_.path(), overwrite);
  refuse(not_found, "destination", "does not exist", folder_ / "no" / "out", options);
  convert(plain_, out_, options);
  const auto before = contents(out_);
  refuse(already_exists, out_.string(), "overwrite replaces it", out_ / "", options);
  EXPECT_EQ(contents(out_), before);
  fs::create_directory(folder_ / "home");
  test::write_text(folder_ / "home" / "letter.txt", "dear");
  refuse(already_exists, (folder_ / "home").string(), "without safetensors files", folder_ / "home",
         overwrite);
  test::write_text(folder_ / "file", "x");
  refuse(already_exists, (folder_ / "file").string(), "is a file, a folder was to be written",
         folder_ / "file", overwrite);
}

TEST_F(ConvertFilesTest, OverwriteReplacesEverything) {
  convert(plain_, out_, options_for({Recipe::nvfp4, Dialect::modelopt}));
  ConvertOptions options = options_for({Recipe::mxfp4, Dialect::compressed_tensors});
  options.overwrite = true;
  convert(plain_, out_, options);
  EXPECT_FALSE(fs::exists(out_ / "hf_quant_config.json"));
  EXPECT_EQ(Checkpoint::open(out_).find("model.layers.0.q_proj.weight")->recipe, Recipe::mxfp4);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "work"), fs::directory_iterator()), 1);
}

TEST_F(ConvertFilesTest, OptionsThatAreRefused) {
  const auto refuse = [&](const std::string& argument, auto change) {
    ConvertOptions options = options_for(kNvfp4);
    change(options);
    expect_refused(ErrorCode::invalid_argument, argument, "must be", options);
  };
  refuse("shard_bytes", [](ConvertOptions& o) { o.shard_bytes = 0; });
  refuse("memory_bytes", [](ConvertOptions& o) { o.memory_bytes = 0; });
  refuse("threads", [](ConvertOptions& o) { o.threads = -2; });
  refuse("fp8_amax_floor", [](ConvertOptions& o) { o.fp8_amax_floor = -1.0f; });
  refuse("fp8_amax_floor", [](ConvertOptions& o) { o.fp8_amax_floor = NAN; });
  refuse("mx_scale_mode", [](ConvertOptions& o) { o.mx_scale_mode = static_cast<MxScaleMode>(7); });
  refuse("dialect", [](ConvertOptions& o) { o.dialect = static_cast<Dialect>(99); });
}

TEST_F(ConvertFilesTest, SourcesThatAreRefusedLeaveNothing) {
  const auto refuse = [&](ErrorCode code, const fs::path& source) {
    try {
      convert(source, out_, options_for(kNvfp4));
      ADD_FAILURE() << "no error for " << source;
    } catch (const Error& error) {
      EXPECT_STREQ(error_code_name(error.code()), error_code_name(code)) << error.what();
    }
    EXPECT_TRUE(fs::is_empty(folder_ / "work"));
  };
  refuse(ErrorCode::not_found, folder_ / "absent");
  fs::create_directory(folder_ / "void");
  refuse(ErrorCode::not_found, folder_ / "void");
  fs::resize_file(plain_ / "model.safetensors", 5000);
  refuse(ErrorCode::corrupt_file, plain_);
  test::write_text(plain_ / "config.json", "{\"quantization_config\": ");
  refuse(ErrorCode::corrupt_file, plain_);
}

/// A file size limit makes the write fail as a full disk would.
TEST_F(ConvertFilesTest, ADiskThatRefusesLeavesNothing) {
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limited = before;
  limited.rlim_cur = 20'000;
  ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
  try {
    convert(plain_, out_, options_for(kNvfp4));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error_code_name(error.code()), "io") << error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_TRUE(fs::is_empty(folder_ / "work"));
}

TEST_F(ConvertFilesTest, AFolderWithoutPermissionIsNamed) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  fs::permissions(folder_ / "work", fs::perms::owner_read | fs::perms::owner_exec);
  expect_error(ErrorCode::io, (folder_ / "work" / ".out.blockscale-partial").string(),
               "cannot create", [&] { convert(plain_, out_, options_for(kNvfp4)); });
  fs::permissions(folder_ / "work", fs::perms::owner_all);
}

}  // namespace
}  // namespace blockscale
