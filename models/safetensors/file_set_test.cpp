// Which files of a folder without an index are its checkpoint: what loaders read.
#include "models/safetensors/file_set.h"

#include "models/testing.h"

namespace blockscale {
namespace {

using test::expect_error;
using Names = std::vector<std::string>;

/// Names without their common end.
Names files(Names names) {
  for (std::string& name : names) name += ".safetensors";
  return names;
}
void expect_chosen(const Names& there, const Names& chosen) {
  SCOPED_TRACE(there.back());
  EXPECT_EQ(choose_files(files(there), "folder"), files(chosen));
}
void expect_refused(const Names& there, ErrorCode code, const std::string& message) {
  expect_error(code, "folder", message, [&] { choose_files(files(there), "folder"); });
}

TEST(FileSet, TheModelsOwnNameComesFirst) {
  expect_chosen({"model"}, {"model"});
  for (const std::string& other :
       Names{"adapter_model", "consolidated", "ema", "model_ema", "model.fp16", "optimizer",
             "diffusion_pytorch_model", "model-00001-of-00002", "pytorch_lora_weights"}) {
    expect_chosen({"model", other}, {"model"});
    expect_chosen({other, "model"}, {"model"});
  }
  expect_chosen({"model", "a", "b", "c"}, {"model"});
}

TEST(FileSet, DiffusersNamesLikewise) {
  const std::string name = "diffusion_pytorch_model";
  for (const std::string& other :
       Names{name + ".fp16", name + "_ema", name + ".non_ema", std::string("pytorch_lora_weights"),
             name + "-00002-of-00003"}) {
    expect_chosen({name, other}, {name});
  }
  for (const std::string& middle : Names{"", ".fp16", ".bf16"}) {
    const Names set = {name + middle + "-00001-of-00002", name + middle + "-00002-of-00002"};
    expect_chosen(set, set);
    const Names behind = {name + "-00001-of-00002" + middle, name + "-00002-of-00002" + middle};
    expect_chosen(behind, behind);
  }
  // The variant is not what is loaded by default.
  const Names set = {name + "-00001-of-00002", name + "-00002-of-00002"};
  expect_chosen({set[0], set[1], name + ".fp16-00001-of-00001"}, set);
  expect_refused({set[1], name + ".fp16-00001-of-00001"}, ErrorCode::not_found,
                 "\"diffusion_pytorch_model-00001-of-00002.safetensors\" is missing");
}

TEST(FileSet, ANumberedSetComesBeforeOtherFiles) {
  const Names set = {"model-00001-of-00003", "model-00002-of-00003", "model-00003-of-00003"};
  expect_chosen(set, set);
  for (const std::string& other :
       Names{"consolidated", "adapter_model", "consolidated-00001-of-00001", "model-00001-of-00002",
             "model-00004-of-00003", "model.fp16", "ema-00001-of-00002"}) {
    expect_chosen({set[2], other, set[0], set[1]}, set);
  }
  for (const Names& other :
       {Names{"model-00001-of-000002", "model-00002-of-000002"},
        Names{"shard-00000-of-00002", "shard-00001-of-00002"}, Names{"pytorch_model-1-of-1"},
        Names{"consolidated-00001-of-00002", "consolidated-00002-of-00002"},
        Names{"weights_0001-of-0002", "weights_0002-of-0002"}}) {
    expect_chosen(other, other);
  }
}

TEST(FileSet, WhatASetLacksIsNamed) {
  expect_refused({"model-00002-of-00002"}, ErrorCode::not_found,
                 "holds an incomplete checkpoint: of \"model-*-of-00002.safetensors\" "
                 "\"model-00001-of-00002.safetensors\" is missing");
  expect_refused({"model-00001-of-00003"}, ErrorCode::not_found,
                 "\"model-00002-of-00003.safetensors\", \"model-00003-of-00003.safetensors\" are "
                 "missing");
  expect_refused({"consolidated", "model-00001-of-00002"}, ErrorCode::not_found,
                 "\"model-00002-of-00002.safetensors\" is missing");
  expect_refused({"consolidated-1-of-1", "model-00001-of-00002"}, ErrorCode::not_found,
                 "\"model-00002-of-00002.safetensors\" is missing");
  expect_refused({"model-00000-of-00002"}, ErrorCode::not_found,
                 "\"model-00001-of-00002.safetensors\" is missing");
  expect_refused({"a-1-of-3", "a-3-of-3"}, ErrorCode::not_found,
                 "\"a-2-of-3.safetensors\" is missing");
  expect_refused({"model-00001-of-00163"}, ErrorCode::not_found, " and 154 more are missing");
  expect_refused({"model-000000001-of-999999999"}, ErrorCode::not_found, "are missing");
  // From 0 on, and one that is counted from 1.
  expect_refused({"a-0-of-3", "a-3-of-3"}, ErrorCode::not_found, "\"a-1-of-3.safetensors\"");
}

TEST(FileSet, WhatMayBeMeantIsNamed) {
  expect_refused({}, ErrorCode::not_found, "holds no *.safetensors file");
  expect_refused({"a", "b"}, ErrorCode::invalid_argument,
                 "holds 2 safetensors files, and neither an index nor a name says which is the "
                 "checkpoint: \"a.safetensors\", \"b.safetensors\"; name one of them");
  for (const Names& there :
       {Names{"model-1", "model-2"}, Names{"consolidated", "ema"}, Names{"adapter_model", "base"},
        Names{"model.fp16", "model.bf16"}, Names{"consolidated.00", "consolidated.01"},
        Names{"model-rank-0-part-0", "model-rank-1-part-0"}, Names{"-1-of-1", "x"},
        Names{"model-0-of-0", "x"}, Names{"model-1-of-9999999999", "x"}}) {
    expect_refused(there, ErrorCode::invalid_argument, "holds 2 safetensors files");
  }
  expect_refused({"a-1-of-1", "b-1-of-1"}, ErrorCode::invalid_argument,
                 "holds 2 sets of safetensors files");
  expect_chosen({"adapter_model"}, {"adapter_model"});
  expect_chosen({"model-1-of-9999999999"}, {"model-1-of-9999999999"});
}

}  // namespace
}  // namespace blockscale
