// Folders of shards: which are opened, and which are refused.
#include "blockscale/safetensors.h"
#include "models/testing.h"

namespace blockscale {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::ScratchFolder;
using test::write_text;
using ::testing::ElementsAre;

/// Writes a file whose tensors, given by name, hold four bytes each.
void write_shard(const fs::path& path, const std::vector<std::string>& names,
                 std::string_view data = "data") {
  std::vector<TensorInfo> infos;
  for (const std::string& name : names) infos.push_back({name, DType::F32, {1}, 4});
  SafetensorsWriter writer(path, infos);
  for (std::size_t i = 0; i < infos.size(); ++i) writer.write(i, 0, std::as_bytes(std::span(data)));
  writer.publish();
}

/// An index with this content of its weight_map.
std::string index_text(std::string_view entries) {
  return R"({"metadata":{"total_size":8},"weight_map":{)" + std::string(entries) + "}}";
}

/// A folder with two shards and a correct index; each test breaks something.
class TensorStoreTest : public ::testing::Test {
 protected:
  TensorStoreTest() {
    write_shard(folder_ / "model-1.safetensors", {"a", "b"});
    write_shard(folder_ / "model-2.safetensors", {"c"}, "DATA");
    write_text(index_, index_text(R"("a":"model-1.safetensors","b":"model-1.safetensors",)"
                                  R"("c":"model-2.safetensors")"));
  }

  void expect_refused(ErrorCode code, const fs::path& argument, const std::string& reason) {
    expect_error(code, argument.string(), reason, [&] { TensorStore::open(folder_.path()); });
  }
  void expect_index_refused(std::string_view text, const std::string& reason) {
    SCOPED_TRACE(text.substr(0, 80));
    write_text(index_, text);
    expect_refused(ErrorCode::corrupt_file, index_, reason);
  }

  ScratchFolder folder_;
  fs::path index_ = folder_ / "model.safetensors.index.json";
};

TEST_F(TensorStoreTest, OpensAFolderByItsIndex) {
  write_shard(folder_ / "not-in-the-index.safetensors", {"a"});
  for (const fs::path& path : {folder_.path(), index_, folder_.path() / ""}) {
    const TensorStore store = TensorStore::open(path);
    EXPECT_EQ(store.files().size(), 2u);
    EXPECT_EQ(store.tensors().size(), 3u);
    ASSERT_NE(store.find("c"), nullptr);
    EXPECT_EQ(store.find("c")->file, 1u);
    EXPECT_EQ(store.data(*store.find("c"))[0], std::byte{'D'});
    EXPECT_EQ(store.data(*store.find("a"))[0], std::byte{'d'});
    EXPECT_EQ(store.find("d"), nullptr);
    EXPECT_TRUE(store.is_folder());
    EXPECT_TRUE(fs::equivalent(store.folder(), folder_.path()));
  }
}

TEST_F(TensorStoreTest, OpensOneFile) {
  const TensorStore store = TensorStore::open(folder_ / "model-2.safetensors");
  EXPECT_EQ(store.tensors().size(), 1u);
  EXPECT_FALSE(store.is_folder());
  EXPECT_EQ(store.folder(), folder_.path());
  expect_error(ErrorCode::invalid_argument, "entry.file", "not below the number of files, 1",
               [&] { store.data({.info = store.find("c")->info, .file = 1}); });
}

TEST_F(TensorStoreTest, OpensAFolderWithoutIndex) {
  fs::remove(index_);
  expect_refused(ErrorCode::invalid_argument, folder_.path(),
                 "\"model-1.safetensors\", \"model-2.safetensors\"; name one of them");
  fs::rename(folder_ / "model-1.safetensors", folder_ / "model-1-of-2.safetensors");
  fs::rename(folder_ / "model-2.safetensors", folder_ / "model-2-of-2.safetensors");
  write_text(folder_ / ".model.safetensors", "hidden: not part of the checkpoint");
  write_shard(folder_ / "consolidated.safetensors", {"b"});
  const TensorStore store = TensorStore::open(folder_.path());
  EXPECT_EQ(store.files().size(), 2u);
  EXPECT_EQ(store.tensors().size(), 3u);
  write_shard(folder_ / "model-2-of-2.safetensors", {"b"});
  expect_refused(ErrorCode::corrupt_file, folder_ / "model-2-of-2.safetensors",
                 "tensor \"b\" is in \"model-1-of-2.safetensors\" too");
  fs::remove(folder_ / "model-1-of-2.safetensors");
  expect_refused(ErrorCode::not_found, folder_.path(), "\"model-1-of-2.safetensors\" is missing");
  write_shard(folder_ / "model.safetensors", {"b"});
  EXPECT_EQ(TensorStore::open(folder_.path()).files().size(), 1u);
}

TEST_F(TensorStoreTest, OpensAnyIndexButOnlyOne) {
  const fs::path other = folder_ / "diffusion_pytorch_model.safetensors.index.json";
  fs::rename(index_, other);
  EXPECT_EQ(TensorStore::open(folder_.path()).tensors().size(), 3u);
  write_text(index_, index_text(R"("c":"model-2.safetensors")"));
  expect_refused(ErrorCode::invalid_argument, folder_.path(),
                 "holds 2 checkpoints; name one of their index files: "
                 "\"diffusion_pytorch_model.safetensors.index.json\", "
                 "\"model.safetensors.index.json\"");
  EXPECT_EQ(TensorStore::open(index_).tensors().size(), 1u);
}

TEST_F(TensorStoreTest, OneIndexMayHaveSeveralNames) {
  const fs::path other = folder_ / "diffusion_pytorch_model.safetensors.index.json";
  for (const fs::path& copy : {other, folder_ / "a.safetensors.index.json"}) {
    fs::copy_file(index_, copy);
    const TensorStore store = TensorStore::open(folder_.path());
    EXPECT_EQ(store.tensors().size(), 3u);
    EXPECT_EQ(store.index(), other);
  }
  fs::remove(other);
  EXPECT_EQ(TensorStore::open(folder_.path()).index().filename(), "a.safetensors.index.json");
  fs::remove(index_);
  fs::create_symlink("nowhere", index_);
  expect_refused(ErrorCode::invalid_argument, folder_.path(), "holds 2 checkpoints");
}

TEST_F(TensorStoreTest, NothingThere) {
  const ScratchFolder empty;
  expect_error(ErrorCode::not_found, empty.path().string(), "holds no *.safetensors file",
               [&] { TensorStore::open(empty.path()); });
  expect_error(ErrorCode::not_found, (empty / "x").string(), "No such file",
               [&] { TensorStore::open(empty / "x"); });
  fs::create_symlink("nowhere", empty / "dangling");
  expect_error(ErrorCode::not_found, (empty / "dangling").string(), "No such file",
               [&] { TensorStore::open(empty / "dangling"); });
}

TEST_F(TensorStoreTest, RefusesIndicesThatDisagreeWithTheShards) {
  expect_index_refused(index_text(R"("a":"model-1.safetensors","x":"model-2.safetensors")"),
                       "tensor \"x\" is not in \"model-2.safetensors\", as the index says");
  expect_index_refused(index_text(R"("a":"model-2.safetensors","c":"model-1.safetensors")"),
                       "as the index says, but in \"model-1.safetensors\"");
  write_text(index_, index_text(R"("a":"model-1.safetensors","z":"model-9.safetensors")"));
  expect_refused(ErrorCode::not_found, folder_ / "model-9.safetensors", "No such file");
  write_shard(folder_ / "model-3.safetensors", {"d", "a"});
  write_text(index_, index_text(R"("a":"model-1.safetensors","d":"model-3.safetensors")"));
  expect_refused(ErrorCode::corrupt_file, folder_ / "model-3.safetensors",
                 "tensor \"a\" is in \"model-1.safetensors\" too");
  write_text(folder_ / "model-3.safetensors", "short");
  expect_refused(ErrorCode::corrupt_file, folder_ / "model-3.safetensors", "this one has 5");
}

TEST_F(TensorStoreTest, RefusesShardNamesThatLeaveTheFolder) {
  const ScratchFolder outside;
  write_shard(outside / "secret.safetensors", {"a"});
  const std::string absolute = (outside / "secret.safetensors").string();
  const std::string parent = "../" + outside.path().filename().string() + "/secret.safetensors";
  for (const std::string& name :
       {absolute, parent, std::string("sub/model.safetensors"),
        std::string("..\\\\model.safetensors"), std::string("."), std::string(".."),
        std::string(""), std::string("config.json"), std::string(".safetensors"),
        std::string("./model-1.safetensors"), std::string("a\\u0000.safetensors")}) {
    expect_index_refused(index_text("\"a\":\"" + name + "\""),
                         "must be the name of a .safetensors file in the folder");
  }
}

TEST_F(TensorStoreTest, RefusesLinksThatLeaveTheFolder) {
  const ScratchFolder outside;
  write_shard(outside / "secret.safetensors", {"c"});
  const fs::path shard = folder_ / "model-2.safetensors";
  fs::rename(shard, folder_ / "real.bin");
  fs::create_symlink("real.bin", shard);  // within the folder: fine
  EXPECT_EQ(TensorStore::open(folder_.path()).tensors().size(), 3u);
  fs::remove(shard);
  fs::create_symlink(outside / "secret.safetensors", shard);
  expect_refused(ErrorCode::corrupt_file, shard, "is a link that leaves its folder, to");
  fs::remove(index_);
  const fs::path numbered = folder_ / "model-1-of-1.safetensors";
  fs::rename(shard, numbered);
  expect_refused(ErrorCode::corrupt_file, numbered, "is a link that leaves its folder, to");
  fs::rename(numbered, shard);
  // The user's own choice of a file is followed.
  EXPECT_EQ(TensorStore::open(shard).tensors().size(), 1u);
}

TEST_F(TensorStoreTest, FollowsTheLinksOfAHuggingFaceCache) {
  const fs::path model = folder_ / "models--org--name";
  const fs::path snapshot = model / "snapshots" / "0123abcd";
  fs::create_directories(snapshot);
  fs::create_directories(model / "blobs");
  write_shard(model / "blobs" / "sha256", {"a"});
  fs::create_symlink("../../blobs/sha256", snapshot / "model.safetensors");
  EXPECT_EQ(TensorStore::open(snapshot).tensors().size(), 1u);
  // A blobs folder that is itself a link leads out.
  const ScratchFolder outside;
  fs::remove_all(model / "blobs");
  write_shard(outside / "sha256", {"a"});
  fs::create_symlink(outside.path(), model / "blobs");
  expect_error(ErrorCode::corrupt_file, (snapshot / "model.safetensors").string(),
               "is a link that leaves its folder", [&] { TensorStore::open(snapshot); });
}

TEST_F(TensorStoreTest, RefusesAnIndexThatIsALinkOutOfTheFolder) {
  const ScratchFolder outside;
  fs::rename(index_, outside / "index.json");
  fs::create_symlink(outside / "index.json", index_);
  expect_refused(ErrorCode::corrupt_file, index_, "is a link that leaves its folder, to");
  // The user's own choice of a file is followed.
  EXPECT_EQ(TensorStore::open(index_).tensors().size(), 3u);
}

TEST_F(TensorStoreTest, AModelOfAHuggingFaceCacheIsItsSnapshot) {
  const fs::path model = folder_ / "models--org--name";
  fs::create_directories(model / "blobs");
  fs::create_directories(model / "snapshots");
  const auto refuse = [&](ErrorCode code, const fs::path& path, const std::string& reason) {
    expect_error(code, path.string(), reason, [&] { TensorStore::open(model); });
  };
  refuse(ErrorCode::not_found, model, "without any snapshot");
  for (const std::string revision : {"aaa", "bbb"}) {
    fs::create_directories(model / "snapshots" / revision);
    write_shard(model / "blobs" / ("of " + revision), {revision});
    fs::create_symlink("../../blobs/of " + revision,
                       model / "snapshots" / revision / "model.safetensors");
    if (revision == "aaa") {
      EXPECT_NE(TensorStore::open(model).find("aaa"), nullptr);
    }
  }
  refuse(ErrorCode::invalid_argument, model, "holds 2 snapshots and no refs/main; name one");
  EXPECT_NE(TensorStore::open(model / "snapshots" / "aaa").find("aaa"), nullptr);
  fs::create_directories(model / "refs");
  write_text(model / "refs" / "main", "bbb\n");
  EXPECT_NE(TensorStore::open(model).find("bbb"), nullptr);
  EXPECT_NE(TensorStore::open(model / "").find("bbb"), nullptr);
  write_text(model / "refs" / "main", "ccc");
  refuse(ErrorCode::not_found, model / "snapshots" / "ccc", "refs/main of the Hugging Face cache");
  for (const std::string& name : {std::string("../../elsewhere"), std::string(".."), std::string(),
                                  std::string(300, 'x'), std::string("a\0b", 3)}) {
    write_text(model / "refs" / "main", name);
    refuse(ErrorCode::corrupt_file, model / "refs" / "main", "does not name a revision");
  }
  fs::remove(model / "refs" / "main");
  fs::create_symlink("/etc/hostname", model / "refs" / "main");
  refuse(ErrorCode::corrupt_file, model / "refs" / "main", "is a link that leaves its folder");
}

TEST_F(TensorStoreTest, RefusesBrokenIndices) {
  const std::string no_map = "must be a JSON object that holds an object \"weight_map\"";
  expect_index_refused("", "not valid JSON");
  expect_index_refused("[]", no_map);
  expect_index_refused("{}", no_map);
  expect_index_refused(R"({"weight_map":[]})", no_map);
  expect_index_refused(R"({"weight_map":null})", no_map);
  expect_index_refused(R"({"weight_map":{}})", "names no tensor");
  expect_index_refused(index_text(R"("a":1)"), "the shard of tensor \"a\" must be a string");
  expect_index_refused(index_text(R"("a":"model-1.safetensors","a":"model-2.safetensors")"),
                       "names \"a\" more than once");
  expect_index_refused(R"({"weight_map":{"a":"x.safetensors"},"weight_map":{}})", "more than once");
  expect_index_refused(index_text(R"("a\n":"model-1.safetensors")"), "holds a control character");
  expect_index_refused(index_text(R"("a":"model-1.safetensors")").substr(0, 60), "not valid JSON");
  expect_index_refused(R"({"metadata":)" + std::string(50, '['), "deeper than 16 levels");
}

}  // namespace
}  // namespace blockscale
