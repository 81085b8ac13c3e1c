// What is kept of measured choices: when, in which file, what of a file is believed, and that
// products are then launched so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "blockscale/bench.h"
#include "blockscale/cuda.h"
#include "blockscale/device.h"
#include "models/testing.h"
#include "ops/gemm/cuda/plan.h"
#include "ops/gemm/cuda/tuning.h"
#include "tests/expect_error.h"
#include "tests/fake_libcuda.h"
#include "tests/fake_pack.h"

namespace blockscale {
namespace {

using gemm_detail::Fp8GemmSize;
using gemm_detail::Fp8LaunchConfig;
using gemm_detail::Tuning;
using gemm_detail::TuningResult;
using Json = nlohmann::json;

const cuda::Chip kChip = {"Fake H200 number 0"};

Fp8GemmSize size_of(std::int64_t m, std::int64_t n = 2112, std::int64_t k = 7168) {
  Fp8GemmSize size;
  size.m = m;
  size.n = n;
  size.k = k;
  size.may_copy_scales = true;
  return size;
}

/// A measurement in which choice `best` takes `seconds`, all others and the plan 10 us.
TuningResult tune_so(const Fp8GemmSize& size, std::size_t best, double seconds, Tuning& tuning) {
  return gemm_detail::tune(
      kChip, size,
      [&](const std::vector<Fp8LaunchConfig>& choices) {
        std::vector<double> times(choices.size() + 1, 10e-6);
        times.at(best + 1) = seconds;
        return times;
      },
      tuning);
}

TEST(Tuning, KeepsWhatIsFaster) {
  Tuning tuning;
  const auto choices = gemm_detail::fp8_launch_configs(size_of(48), kChip);
  const TuningResult result = tune_so(size_of(48), 3, 9e-6, tuning);
  EXPECT_EQ(result.kept, choices[3]);
  EXPECT_EQ(result.tried, choices.size());
  EXPECT_EQ(result.best_seconds, 9e-6);
  EXPECT_EQ(result.planned_seconds, 10e-6);
  EXPECT_EQ(tuning.find(kChip, size_of(48)), choices[3]);
  EXPECT_EQ(tuning.find(kChip, size_of(33)), choices[3]);
  EXPECT_EQ(tuning.find(kChip, size_of(64)), choices[3]);

  // Of another class or chip.
  Fp8GemmSize other = size_of(48);
  other.promotion = Promotion::columns;
  for (const Fp8GemmSize& size :
       {size_of(32), size_of(65), size_of(48, 2048), size_of(48, 2112, 7040), other}) {
    EXPECT_EQ(tuning.find(kChip, size), std::nullopt);
  }
  EXPECT_EQ(tuning.find({"another"}, size_of(48)), std::nullopt);
  EXPECT_EQ(tuning.find({kChip.name, 90, 114}, size_of(48)), std::nullopt);

  // A later measurement counts.
  EXPECT_EQ(tune_so(size_of(64), 2, 9e-6, tuning).kept, choices[2]);
  EXPECT_EQ(tuning.choices().size(), 1u);
  EXPECT_EQ(tune_so(size_of(64), 3, 9.8e-6, tuning).kept, std::nullopt);
  EXPECT_TRUE(tuning.choices().empty());
}

TEST(Tuning, AChoiceThatCannotComputeIsNotTaken) {
  Tuning tuning;
  tuning.set({kChip, gemm_detail::tuning_class(size_of(64)), {64, 32, 3, 8, 1}, 1e-6, 2e-6});
  EXPECT_EQ(tuning.find(kChip, size_of(64)), std::nullopt);  // three stages, where more fit
  Fp8GemmSize whole = size_of(64);
  whole.may_split = false;
  const auto choices = gemm_detail::fp8_launch_configs(whole, kChip);
  tuning.set({kChip, gemm_detail::tuning_class(whole), choices[0], 1e-6, 2e-6});
  EXPECT_EQ(tuning.find(kChip, whole), choices[0]);
}

TEST(Tuning, FilesGoRound) {
  const test::ScratchFolder folder;
  const auto path = folder / "deep/er/tuning.json";
  Tuning tuning = Tuning::read(path);
  EXPECT_TRUE(tuning.choices().empty());
  for (const std::int64_t m : {1, 64, 4096}) tune_so(size_of(m), 1, 5e-6, tuning);
  Fp8GemmSize other = size_of(7, 64, 300);
  other.promotion = Promotion::columns;
  other.may_split = false;
  other.loads_scales = false;
  other.may_copy_scales = false;
  other.batch = 3;
  tune_so(other, 1, 5e-6, tuning);
  tuning.write();
  const Tuning read = Tuning::read(path);
  ASSERT_EQ(read.choices().size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(read.choices()[i].chip, tuning.choices()[i].chip);
    EXPECT_EQ(read.choices()[i].size, tuning.choices()[i].size);
    EXPECT_EQ(read.choices()[i].choice, tuning.choices()[i].choice);
    EXPECT_EQ(read.choices()[i].seconds, tuning.choices()[i].seconds);
    EXPECT_EQ(read.choices()[i].planned_seconds, tuning.choices()[i].planned_seconds);
  }
  EXPECT_EQ(read.find(kChip, other), tuning.find(kChip, other));
  EXPECT_NE(read.find(kChip, other), std::nullopt);
}

/// A file with one choice, changed by `change`, is refused with `reason`.
void expect_refused(const std::string& reason, const std::function<void(Json&)>& change) {
  const test::ScratchFolder folder;
  const auto path = folder / "tuning.json";
  Tuning tuning = Tuning::read(path);
  tune_so(size_of(64), 1, 5e-6, tuning);
  tuning.write();
  Json json = Json::parse(test::read_text(path));
  change(json);
  test::write_text(path, json.dump());
  test::expect_error(ErrorCode::corrupt_file, path.string(), reason,
                     [&] { (void)Tuning::read(path); });
}

TEST(Tuning, FilesAreNotTrusted) {
  expect_refused("the file is no object", [](Json& j) { j = Json::array(); });
  expect_refused("the file.kernels is missing", [](Json& j) { j.erase("kernels"); });
  expect_refused("the file.kernels is no text", [](Json& j) { j["kernels"] = 1; });
  expect_refused("choices must be an array", [](Json& j) { j["choices"] = 1; });
  expect_refused("choices must be an array of at most 4096",
                 [](Json& j) { j["choices"] = Json::array_t(4097, j["choices"][0]); });
  expect_refused("choices[0] is no object", [](Json& j) { j["choices"][0] = "x"; });
  expect_refused("choices[0].chip is no text", [](Json& j) { j["choices"][0]["chip"] = 3; });
  const auto set = [](const char* name, const Json& value) {
    return [=](Json& j) { j["choices"][0][name] = value; };
  };
  expect_refused("choices[0].m must be an integer from 1 to 2147483648", set("m", 0));
  expect_refused("choices[0].n must be an integer from 1", set("n", 1e300));
  expect_refused("choices[0].n must be an integer from 1", set("n", 18446744073709551615u));
  expect_refused("choices[0].k must be an integer from 0", set("k", -1));
  expect_refused("choices[0].batch must be an integer", set("batch", "3"));
  expect_refused("choices[0].multiprocessors must be an integer", set("multiprocessors", 1.5));
  expect_refused("choices[0].promotion must be blocks or columns", set("promotion", "rows"));
  expect_refused("choices[0].may_split is neither", set("may_split", 1));
  expect_refused("choices[0].seconds must be a positive", set("seconds", -1.0));
  expect_refused("choices[0].planned_seconds must be a positive", set("planned_seconds", "x"));
  expect_refused("choices[0].choice is no object", set("choice", 1));
  for (const char* const name : {"rows", "columns", "stages", "split", "per_sm"}) {
    expect_refused("choices[0].choice." + std::string(name) + " must be an integer from 1",
                   [=](Json& j) { j["choices"][0]["choice"][name] = 1 << 20; });
  }
  const test::ScratchFolder folder;
  const auto path = folder / "tuning.json";
  const auto expect_corrupt = [&](const std::string& text, const std::string& reason) {
    test::write_text(path, text);
    test::expect_error(ErrorCode::corrupt_file, path.string(), reason,
                       [&] { (void)Tuning::read(path); });
  };
  expect_corrupt("", "is no JSON");
  expect_corrupt("{\"kernels\": ", "is no JSON");
  expect_corrupt(std::string(Tuning::kMostBytes + 1, ' '), "4194305 bytes; at most 4194304");
}

TEST(Tuning, OtherKernelsTimesDoNotCount) {
  const test::ScratchFolder folder;
  const auto path = folder / "tuning.json";
  test::write_text(path, R"({"kernels": "of another library", "choices": "whatever"})");
  EXPECT_TRUE(Tuning::read(path).choices().empty());
}

TEST(Tuning, TheOldestChoicesLeave) {
  Tuning tuning;
  for (std::size_t i = 0; i < Tuning::kMostChoices + 2; ++i) {
    const Fp8GemmSize size = gemm_detail::tuning_class(size_of(64, static_cast<int>(i) + 1));
    tuning.set({kChip, size, {}, 1e-6, 2e-6});
  }
  EXPECT_EQ(tuning.choices().size(), Tuning::kMostChoices);
  EXPECT_EQ(tuning.choices().front().size.n, 3);
}

TEST(Tuning, TheFileIsTheUsers) {
  setenv("BLOCKSCALE_TUNING", "/somewhere/times.json", 1);
  EXPECT_EQ(Tuning::user_file(), "/somewhere/times.json");
  unsetenv("BLOCKSCALE_TUNING");
  setenv("BLOCKSCALE_CACHE", "/cache", 1);
  EXPECT_EQ(Tuning::user_file(), "/cache/gemm-tuning.json");
  unsetenv("BLOCKSCALE_CACHE");
  test::expect_error(ErrorCode::invalid_argument, "BLOCKSCALE_TUNING", "is not set",
                     [] { Tuning().write(); });
}

/// A process whose user has tuned one class.
class TunedGemm : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("BLOCKSCALE_LIBCUDA", BLOCKSCALE_FAKE_LIBCUDA, 1);
    pack_ = std::make_unique<test::FakePack>(gemm_detail::fp8_gemm_kernel_specs());
    folder_ = std::make_unique<test::ScratchFolder>();
    setenv("BLOCKSCALE_TUNING", file().c_str(), 1);
    Tuning tuning = Tuning::read(Tuning::user_file());
    tuning.set({kChip, gemm_detail::tuning_class(size_of(64)), choice(), 5e-6, 6e-6});
    tuning.write();
    (void)Tuning::of_user();
    unsetenv("BLOCKSCALE_TUNING");  // it is read once
  }
  static void TearDownTestSuite() {
    pack_.reset();
    folder_.reset();
  }
  static std::string file() { return (*folder_ / "tuning.json").string(); }
  /// Not the one that the plan has.
  static Fp8LaunchConfig choice() {
    for (const Fp8LaunchConfig& c : gemm_detail::fp8_launch_configs(size_of(64), kChip)) {
      if (c.rows == 64 && c.columns == 128 && c.per_sm == 2) return c;
    }
    return {};
  }
  static std::byte* memory(int part) {
    return reinterpret_cast<std::byte*>((std::uintptr_t{1} << 32) +
                                        (static_cast<std::uintptr_t>(part) << 27));
  }
  static GemmArguments product(std::int64_t m) {
    GemmArguments x;
    x.a = {Recipe::fp8_1x128, m, 7168};
    x.b = {Recipe::fp8_128x128, 2112, 7168};
    x.a.values = memory(0);
    x.a.scales = memory(1);
    x.b.values = memory(2);
    x.b.scales = memory(3);
    x.d = {memory(4), Format::bf16, m, 2112};
    return x;
  }

  inline static std::unique_ptr<test::FakePack> pack_;
  inline static std::unique_ptr<test::ScratchFolder> folder_;
  test::FakeCuda& fake_ = test::fake_cuda(BLOCKSCALE_FAKE_LIBCUDA);
};

TEST_F(TunedGemm, LaunchesAsTuned) {
  fake_.reset();
  for (int repeat = 0; repeat < 2; ++repeat) {
    fake_.launches.clear();
    cuda::gemm(product(60));
    ASSERT_EQ(fake_.launches.size(), 1u);
    EXPECT_EQ(fake_.launches[0].kernel, "gemm_fp8_64x128_blocks");
  }
  fake_.launches.clear();
  cuda::gemm(product(30));
  EXPECT_NE(fake_.launches.at(0).kernel, "gemm_fp8_64x128_blocks");
}

/// The whole way, by times that the fake driver gives launches: of the plan's kernel 10 us, and 8
/// of one other choice.
TEST_F(TunedGemm, ATimedChoiceIsKeptOrForgotten) {
  constexpr std::int64_t kM = 48, kN = 576, kK = 7168;
  ScaledTensor a(Recipe::fp8_1x128, kM, kK), b(Recipe::fp8_128x128, kN, kK),
      d(Recipe::bf16, kM, kN);
  GemmArguments x;
  x.a = std::as_const(a).view();
  x.b = std::as_const(b).view();
  x.d = {d.view().values, Format::bf16, kM, kN};
  const std::string path = (*folder_ / "timed.json").string();
  setenv("BLOCKSCALE_TUNING", path.c_str(), 1);
  const cuda::DeviceScope device(0);
  double fastest = 0.008;
  fake_.reset();
  fake_.milliseconds = [&](const test::FakeLaunch& launch) {
    return launch.kernel == "gemm_fp8_64x96_blocks" && launch.cluster[0] == 3 ? fastest : 0.010;
  };
  const cuda::GemmTuning kept = cuda::tune_gemm(x, 3);
  EXPECT_EQ(kept.path, path);
  EXPECT_NEAR(kept.planned_seconds, 10e-6, 1e-9);
  EXPECT_NEAR(kept.best_seconds, 8e-6, 1e-9);
  EXPECT_THAT(kept.kept, testing::HasSubstr("64 x 96"));
  const Fp8GemmSize size = size_of(kM, kN, kK);
  EXPECT_EQ(kept.tried, gemm_detail::fp8_launch_configs(size, kChip).size());
  const auto found = Tuning::read(path).find(kChip, size);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->split, 3u);
  EXPECT_TRUE(fake_.memory.empty()) << "all memory is freed";

  fastest = 0.0098;
  EXPECT_EQ(cuda::tune_gemm(x, 3).kept, "");
  EXPECT_TRUE(Tuning::read(path).choices().empty());

  fake_.failures["cuMemAlloc_v2"] = 2;
  EXPECT_THROW((void)cuda::tune_gemm(x, 3), Error);
  fake_.reset();
  test::expect_invalid("repeats", "is 0, must be at least 1", [&] { (void)cuda::tune_gemm(x, 0); });
  unsetenv("BLOCKSCALE_TUNING");
}

TEST_F(TunedGemm, SaysSo) {
  const std::string text = cuda::describe_gemm(product(60), kChip);
  EXPECT_THAT(text, testing::HasSubstr("gemm_fp8_64x128_blocks: "));
  EXPECT_THAT(text, testing::EndsWith("tuned: " + file() + "\n"));
  for (const std::string& other :
       {cuda::describe_gemm(product(60), {}), cuda::describe_gemm(product(30), kChip)}) {
    EXPECT_THAT(other, testing::Not(testing::HasSubstr("tuned")));
  }
}

}  // namespace
}  // namespace blockscale
