// Writer: what it writes is read back, whole or not at all.
#include <random>

#include "blockscale/parallel.h"
#include "blockscale/safetensors.h"
#include "models/testing.h"

namespace blockscale {
namespace {

using test::expect_error;
using test::read_text;
using test::ScratchFolder;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr DType kAllDTypes[] = {
    DType::BOOL,    DType::F4,          DType::F6_E2M3, DType::F6_E3M2,     DType::U8,  DType::I8,
    DType::F8_E5M2, DType::F8_E4M3,     DType::F8_E8M0, DType::F8_E4M3FNUZ, DType::I16, DType::U16,
    DType::F16,     DType::F8_E5M2FNUZ, DType::BF16,    DType::I32,         DType::U32, DType::F32,
    DType::C64,     DType::F64,         DType::I64,     DType::U64,
};

std::vector<std::byte> random_bytes(std::uint64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

TEST(SafetensorsWriter, EveryDTypeIsReadBack) {
  const ScratchFolder folder;
  std::vector<TensorInfo> infos;
  std::vector<std::vector<std::byte>> contents;
  for (const DType dtype : kAllDTypes) {
    const auto seed = static_cast<unsigned>(infos.size());
    infos.push_back({std::string(dtype_name(dtype)), dtype, {3, 8}, 0});
    contents.push_back(random_bytes(tensor_bytes(dtype, infos.back().shape), seed));
  }
  infos.push_back({"scalar", DType::F32, {}, 4});
  contents.push_back(random_bytes(4, 100));
  infos.push_back({"empty", DType::F4, {7, 0}, 0});
  contents.emplace_back();
  {
    SafetensorsWriter writer(folder / "all.safetensors", infos, {{"format", "pt"}, {"\n", "\"é"}});
    for (std::size_t i = infos.size(); i-- > 0;) writer.write(i, 0, contents[i]);
    writer.publish();
  }
  const SafetensorsFile file = SafetensorsFile::open(folder / "all.safetensors");
  ASSERT_EQ(file.tensors().size(), infos.size());
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("\n"), "\"é");
  for (std::size_t i = 0; i < infos.size(); ++i) {
    const TensorInfo* info = file.find(infos[i].name);
    ASSERT_NE(info, nullptr) << infos[i].name;
    EXPECT_EQ(info->dtype, infos[i].dtype);
    EXPECT_EQ(info->shape, infos[i].shape);
    EXPECT_EQ(info->bytes, contents[i].size());
    EXPECT_EQ(info->bytes, tensor_bytes(info->dtype, info->shape));
    const std::span<const std::byte> data = file.data(*info);
    EXPECT_TRUE(std::equal(data.begin(), data.end(), contents[i].begin(), contents[i].end()));
  }
}

TEST(SafetensorsWriter, WritesTheBytesOfTheFormat) {
  const ScratchFolder folder;
  SafetensorsWriter writer(folder / "a.safetensors",
                           {{"b", DType::U8, {3}, 3}, {"a", DType::F4, {2, 2}, 2}}, {{"k", "v"}});
  writer.write(1, 0, bytes_of("de"));
  writer.write(0, 1, bytes_of("bc"));
  writer.write(0, 0, bytes_of("a"));
  writer.publish();
  std::string header =
      R"({"__metadata__":{"k":"v"},"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
      R"("a":{"dtype":"F4","shape":[2,2],"data_offsets":[3,5]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(read_text(folder / "a.safetensors"), test::safetensors_bytes(header, "abcde"));
  EXPECT_THAT(folder.names(), ElementsAre("a.safetensors"));
}

TEST(SafetensorsWriter, FileWithoutTensors) {
  const ScratchFolder folder;
  SafetensorsWriter(folder / "none.safetensors", {}).publish();
  EXPECT_EQ(read_text(folder / "none.safetensors"), test::safetensors_bytes("{}      ", ""));
  EXPECT_THAT(SafetensorsFile::open(folder / "none.safetensors").tensors(), IsEmpty());
}

TEST(SafetensorsWriter, ThreadsWritePiecesInAnyOrder) {
  const ScratchFolder folder;
  constexpr std::int64_t kTensors = 5, kPieces = 64, kPieceBytes = 1021;
  std::vector<TensorInfo> infos;
  std::vector<std::vector<std::byte>> contents;
  for (unsigned i = 0; i < kTensors; ++i) {
    infos.push_back({"t" + std::to_string(i), DType::I8, {kPieces, kPieceBytes}, 0});
    contents.push_back(random_bytes(kPieces * kPieceBytes, i));
  }
  SafetensorsWriter writer(folder / "t.safetensors", infos);
  std::vector<std::int64_t> order(kTensors * kPieces);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  parallel_for(kTensors * kPieces, 1, 8, [&](std::int64_t begin, std::int64_t) {
    const auto piece = static_cast<std::uint64_t>(order[static_cast<std::size_t>(begin)]);
    const std::size_t tensor = piece / kPieces;
    const std::uint64_t offset = piece % kPieces * kPieceBytes;
    writer.write(tensor, offset, std::span(contents[tensor]).subspan(offset, kPieceBytes));
  });
  writer.publish();
  const SafetensorsFile file = SafetensorsFile::open(folder / "t.safetensors");
  for (std::size_t i = 0; i < kTensors; ++i) {
    const std::span<const std::byte> data = file.data(*file.find(infos[i].name));
    EXPECT_TRUE(std::equal(data.begin(), data.end(), contents[i].begin(), contents[i].end()));
  }
}

TEST(SafetensorsWriter, RefusesWhatNoFileCanHold) {
  const ScratchFolder folder;
  const auto expect = [&](const std::string& argument, const std::string& reason,
                          std::vector<TensorInfo> infos,
                          std::map<std::string, std::string> metadata = {}) {
    expect_error(ErrorCode::invalid_argument, argument, reason, [&] {
      SafetensorsWriter(folder / "bad.safetensors", std::move(infos), std::move(metadata));
    });
  };
  constexpr std::int64_t kLarge = std::int64_t{1} << 62;
  expect("tensors.name", "appears twice", {{"a", DType::U8, {1}, 1}, {"a", DType::U8, {1}, 1}});
  expect("tensors.name", "cannot name", {{"a\nb", DType::U8, {1}, 1}});
  expect("tensors.name", "cannot name", {{"__metadata__", DType::U8, {1}, 1}});
  expect("tensors.name", "at most 1024 bytes", {{std::string(1025, 'n'), DType::U8, {1}, 1}});
  expect("tensors.name", "UTF-8", {{"a\xFF", DType::U8, {1}, 1}});
  expect("metadata", "UTF-8", {}, {{"k", "\xC0\x80"}});
  expect("metadata", "UTF-8", {}, {{"\xED\xA0\x80", "v"}});
  expect("tensors.bytes", "dtype and shape need 4", {{"a", DType::F32, {1}, 5}});
  expect("shape", "whole number of bytes", {{"a", DType::F4, {3}, 0}});
  expect("shape", "negative", {{"a", DType::U8, {-1}, 0}});
  expect("shape", "2^63 - 1", {{"a", DType::U8, {kLarge, 2}, 0}});
  expect("shape", "2^63 - 1", {{"a", DType::F64, {kLarge}, 0}});
  expect("shape", "2^63 - 1", {{"a", DType::U8, {0, kLarge, 2}, 0}});
  expect("tensors.shape", "at most 64", {{"a", DType::U8, std::vector<std::int64_t>(65, 1), 1}});
  std::vector<TensorInfo> many;
  for (int i = 0; i < 40; ++i) {
    many.push_back({std::to_string(i), DType::U8, {kLarge / 8}, 0});
  }
  expect("tensors", "exceed 2^64", many);
  expect("dtype", "has the code 99", {{"a", static_cast<DType>(99), {1}, 1}});
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(SafetensorsWriter, RefusesWritesThatAreNotPartOfATensor) {
  const ScratchFolder folder;
  SafetensorsWriter writer(folder / "a.safetensors", {{"a", DType::U8, {4}, 4}});
  const auto expect = [&](const std::string& argument, const std::string& reason,
                          std::size_t tensor, std::uint64_t offset, std::string_view text) {
    expect_error(ErrorCode::invalid_argument, argument, reason,
                 [&] { writer.write(tensor, offset, bytes_of(text)); });
  };
  expect("tensor", "number of tensors, 1", 1, 0, "x");
  expect("offset", "leave tensor \"a\" of 4 bytes", 0, 3, "xy");
  expect("offset", "leave tensor \"a\" of 4 bytes", 0, 5, "");
  expect("offset", "leave tensor \"a\" of 4 bytes", 0, ~std::uint64_t{0}, "xy");
  writer.write(0, 1, bytes_of("bc"));
  expect("offset", "written already", 0, 2, "c");
  expect("offset", "written already", 0, 0, "ab");
  expect("offset", "written already", 0, 0, "abcd");
  writer.write(0, 0, bytes_of("a"));
  writer.write(0, 3, bytes_of("d"));
  writer.publish();
  EXPECT_TRUE(read_text(folder / "a.safetensors").ends_with("abcd"));
  expect_error(ErrorCode::invalid_argument, (folder / "a.safetensors").string(), "already",
               [&] { writer.publish(); });
}

TEST(SafetensorsWriter, PublishesOnlyWhatIsWhole) {
  const ScratchFolder folder;
  const std::filesystem::path path = folder / "a.safetensors";
  {
    SafetensorsWriter writer(path, {{"a", DType::U8, {2}, 2}, {"b", DType::U8, {4}, 4}});
    writer.write(0, 0, bytes_of("xy"));
    writer.write(1, 0, bytes_of("1"));
    writer.write(1, 2, bytes_of("34"));
    expect_error(ErrorCode::invalid_argument, path.string(), "byte 1 of tensor \"b\"",
                 [&] { writer.publish(); });
    writer.write(1, 1, bytes_of("2"));
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_EQ(folder.names().size(), 1u);  // the temporary file
  }
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(SafetensorsWriter, MovesWithItsFile) {
  const ScratchFolder folder;
  SafetensorsWriter first(folder / "a.safetensors", {{"a", DType::U8, {1}, 1}});
  SafetensorsWriter second(std::move(first));
  second.write(0, 0, bytes_of("x"));
  second.publish();
  EXPECT_THAT(folder.names(), ElementsAre("a.safetensors"));
}

}  // namespace
}  // namespace blockscale
