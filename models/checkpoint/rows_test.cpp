// Rows of weights: how work is cut, and tensors that claim rows without holding a byte.
#include "models/checkpoint/rows.h"

#include "models/checkpoint/checkpoint_testing.h"

namespace blockscale {
namespace {

using test::expect_error;
using test::ScratchFolder;

constexpr std::int64_t kManyRows = std::int64_t{1} << 56;

TEST(CutRows, CoversEveryRowOnce) {
  const std::vector<models::RowRange> ranges = models::cut_rows({2, 5, 16}, 2);
  ASSERT_EQ(ranges.size(), 6u);
  EXPECT_EQ(ranges[2].begin, 4);
  EXPECT_EQ(ranges[2].count, 1);
  EXPECT_EQ(ranges[5].batch, 1);
  EXPECT_TRUE(models::cut_rows({1, kManyRows, 0}, 1).empty());
  EXPECT_TRUE(models::cut_rows({kManyRows, 0, 4}, 1).empty());
}

TEST(EmptyTensors, TakeNoWorkWhateverTheirShape) {
  const ScratchFolder folder;
  test::write_checkpoint(folder / "source", {test::f32_tensor("a.weight", {4, 32}, 1),
                                             {"b.weight", DType::F32, {kManyRows, 0}, ""},
                                             {"c.weight", DType::F32, {kManyRows, 0, 2}, ""}});
  ConvertOptions options;
  for (const Recipe recipe : {Recipe::bf16, Recipe::mxfp4}) {
    SCOPED_TRACE(recipe_traits(recipe).name);
    const std::filesystem::path result = folder / recipe_traits(recipe).name;
    options.recipe = recipe;
    const ConvertReport report = convert(folder / "source", result, options);
    EXPECT_EQ(report.tensors[1].reason, "empty");
    const CompareReport compared = compare(folder / "source", result);
    EXPECT_EQ(compared.tensors.size(), 3u);
    EXPECT_EQ(compared.tensors[2].max_error, 0.0);
  }
}

TEST(EmptyTensors, AreNoQuantizedWeights) {
  const ScratchFolder folder;
  test::write_store(folder / "a.safetensors",
                    {{"a.weight", DType::F8_E4M3, {0, std::int64_t{1} << 58}, ""},
                     {"a.weight_scale_inv", DType::F32, {0, std::int64_t{1} << 51}, ""}});
  expect_error(ErrorCode::corrupt_file, "a.weight", "are empty",
               [&] { Checkpoint::open(folder / "a.safetensors"); });
}

}  // namespace
}  // namespace blockscale
