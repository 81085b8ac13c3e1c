// Trials of kernels that only the emulator has run, against a fake libcuda.so.1 of an SM120: what
// is launched and said where they pass, fail, cannot be held, or end their process. A verdict is of
// a process, so that each process here is one of its own.
#include "ops/common/cuda/trials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "models/testing.h"
#include "ops/gemm/cuda/trials.h"
#include "runtime/files/file_lock.h"
#include "tests/on_fake_driver.h"

namespace blockscale {
namespace {

using cuda::KernelsOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr const char* kFewRows = "gemm_few_rows_nvfp4_16_refilled";
constexpr const char* kFewRowsOfGroups = "grouped_gemm_few_rows_mxfp4_8";

class KernelTrials : public test::OnFakeDriver {
 protected:
  void SetUp() override { setenv("BLOCKSCALE_CACHE", cache().c_str(), 1); }
  void TearDown() override { unsetenv("BLOCKSCALE_CACHE"); }

  std::filesystem::path cache() const { return folder_ / "cache"; }
  std::vector<std::filesystem::path> verdicts() const {
    std::vector<std::filesystem::path> paths;
    if (!std::filesystem::exists(cache())) return paths;
    for (const auto& entry : std::filesystem::directory_iterator(cache())) {
      if (entry.path().extension() == ".trial") paths.push_back(entry.path());
    }
    return paths;
  }

  /// Runs `body` in a process that knows of no trial.
  void in_a_process(const std::function<void()>& body) {
    EXPECT_EXIT(
        {
          fake_.reset();
          fake_.compute_capability = 120;
          fake_.parameter_bytes = 8;
          const int errors = dup(STDERR_FILENO);
          said_ = std::tmpfile();
          dup2(fileno(said_), STDERR_FILENO);
          body();
          dup2(errors, STDERR_FILENO);
          said_bytes_ = 0;
          std::fputs(said().c_str(), stderr);
          std::_Exit(HasFailure() ? 1 : 0);  // the pack is the parent's
        },
        testing::ExitedWithCode(0), "");
  }

  /// Has the fake leave another result where kernels with `part` in their names are tried.
  void spoil(const std::string& part) {
    fake_.milliseconds = [this, part](const test::FakeLaunch& launch) {
      const bool is_tried = !fake_.memory.empty() && launch.kernel.find(part) != std::string::npos;
      if (is_tried) fake_.memory.begin()->second.front() = {};
      return 1;
    };
  }

  /// Has `happen` happen where the kernel of few rows is first launched.
  void at_its_launch(const std::function<void()>& happen) {
    fake_.milliseconds = [happen](const test::FakeLaunch& launch) {
      if (launch.kernel == kFewRows) happen();
      return 1;
    };
  }

  /// What was logged, to standard error, since the last time.
  std::string said() {
    std::string text;
    std::fseek(said_, said_bytes_, SEEK_SET);
    for (int c = std::getc(said_); c != EOF; c = std::getc(said_)) text += static_cast<char>(c);
    said_bytes_ += static_cast<long>(text.size());
    return text;
  }

  /// The kernels that a call launches.
  std::vector<std::string> launched(const std::function<void()>& call) {
    fake_.launches.clear();
    call();
    EXPECT_THAT(fake_.memory, IsEmpty());  // nothing stays allocated
    std::vector<std::string> kernels;
    for (const test::FakeLaunch& launch : fake_.launches) kernels.push_back(launch.kernel);
    return kernels;
  }
  static ScaledTensorView operand(Recipe recipe, std::int64_t rows, int part) {
    ScaledTensorView x = {recipe, rows, 512};
    x.values = memory(part);
    if (recipe != Recipe::bf16) x.scales = memory(part + 1);
    return x;
  }
  std::vector<std::string> launched_by_gemm(void* stream = nullptr) {
    GemmArguments x;
    x.a = operand(Recipe::bf16, 4, 0);
    x.b = operand(Recipe::nvfp4, 64, 1);
    x.d = {memory(3), Format::bf16, 4, 64};
    return launched([&] { cuda::gemm(x, {.stream = stream}); });
  }
  std::vector<std::string> launched_by_groups() {
    GroupedGemmArguments x;
    x.a = operand(Recipe::bf16, 4, 0);
    x.b = operand(Recipe::mxfp4, 64, 1);
    x.b.batch = 4;
    x.d = {memory(3), Format::bf16, 4, 64};
    x.offsets = reinterpret_cast<const std::int32_t*>(memory(4));
    return launched([&] { cuda::grouped_gemm(x); });
  }

  test::ScratchFolder folder_;
  std::FILE* said_ = nullptr;  // of a process: its standard error
  long said_bytes_ = 0;        // of it, that were asked for
};

TEST_F(KernelTrials, AKernelThatPassesIsLaunched) {
  in_a_process([&] {
    // Beside plain kernels in bf16 and in f16, and then for the call.
    EXPECT_THAT(launched_by_gemm(), ElementsAre(kFewRows, StartsWith("gemm_plain_"), kFewRows,
                                                StartsWith("gemm_plain_"), kFewRows));
    EXPECT_THAT(launched_by_gemm(), ElementsAre(kFewRows));
    EXPECT_THAT(launched_by_groups(),
                ElementsAre(kFewRowsOfGroups, StartsWith("grouped_gemm_plain_"), kFewRowsOfGroups,
                            StartsWith("grouped_gemm_plain_"), kFewRowsOfGroups));
    EXPECT_THAT(launched_by_groups(), ElementsAre(kFewRowsOfGroups));
    EXPECT_EQ(said(), "");
  });
  EXPECT_EQ(verdicts().size(), 2u);
}

TEST_F(KernelTrials, PlainKernelsTakeThePlaceOfOneThatFails) {
  in_a_process([&] {
    spoil("few_rows");
    EXPECT_THAT(launched_by_gemm(),
                ElementsAre(kFewRows, StartsWith("gemm_plain_"), StartsWith("gemm_plain_")));
    EXPECT_THAT(said(), HasSubstr("plain kernels take the place of gemm_few_rows_nvfp4"));
    EXPECT_THAT(launched_by_gemm(), ElementsAre(StartsWith("gemm_plain_")));
    EXPECT_EQ(said(), "");  // once
    (void)launched_by_groups();
    EXPECT_THAT(said(), HasSubstr("place of grouped_gemm_few_rows_mxfp4"));
    EXPECT_THAT(launched_by_groups(), ElementsAre(StartsWith("grouped_gemm_plain_")));
  });
}

TEST_F(KernelTrials, AnotherProcessReadsWhatOneFound) {
  in_a_process([&] { (void)launched_by_gemm(); });
  in_a_process([&] { EXPECT_THAT(launched_by_gemm(), ElementsAre(kFewRows)); });
  ASSERT_EQ(verdicts().size(), 1u);
  EXPECT_EQ(test::read_text(verdicts()[0]),
            "passed gemm_few_rows_nvfp4_16_refilled on Fake H200 number 0\n");
  test::write_text(verdicts()[0], "failed\n");
  in_a_process([&] {
    EXPECT_THAT(launched_by_gemm(), ElementsAre(StartsWith("gemm_plain_")));
    EXPECT_THAT(said(), HasSubstr("it failed its trial before"));
  });
  test::write_text(verdicts()[0], "");
  in_a_process([&] { EXPECT_EQ(launched_by_gemm().size(), 5u); });
  EXPECT_THAT(test::read_text(verdicts()[0]), StartsWith("passed"));
}

TEST_F(KernelTrials, NothingIsTriedNorSaidWithinACapture) {
  in_a_process([&] {
    fake_.capturing = &fake_;
    EXPECT_THAT(launched_by_gemm(&fake_), ElementsAre(StartsWith("gemm_plain_")));
    EXPECT_EQ(fake_.calls["cuMemAlloc_v2"], 0);
    EXPECT_EQ(said(), "");
    EXPECT_THAT(verdicts(), IsEmpty());
    fake_.capturing = nullptr;
    EXPECT_EQ(launched_by_gemm(&fake_).size(), 5u);
    fake_.capturing = &fake_;
    EXPECT_THAT(launched_by_gemm(&fake_), ElementsAre(kFewRows));
  });
}

TEST_F(KernelTrials, OneThatCannotBeHeldIsSaidAndNotKept) {
  in_a_process([&] {
    fake_.failures["cuMemAlloc_v2"] = 2;
    EXPECT_THAT(launched_by_gemm(), ElementsAre(StartsWith("gemm_plain_")));
    EXPECT_THAT(said(), HasSubstr("cuMemAlloc_v2 failed with error 2"));
  });
  EXPECT_THAT(verdicts(), IsEmpty());
  in_a_process([&] {  // something else has faulted before
    fake_.failures["cuStreamSynchronize"] = 719;
    EXPECT_THAT(launched_by_gemm(), testing::Contains(StartsWith("gemm_plain_")));
    EXPECT_THAT(said(), HasSubstr("cuStreamSynchronize failed with error 719"));
  });
  EXPECT_THAT(verdicts(), IsEmpty());
}

TEST_F(KernelTrials, OneThatFaultsHasFailed) {
  in_a_process([&] {
    at_its_launch([&] { fake_.failures["cuStreamSynchronize"] = 719; });
    (void)launched_by_gemm();
    EXPECT_THAT(said(), HasSubstr("cuStreamSynchronize failed with error 719"));
  });
  in_a_process([&] {
    EXPECT_THAT(launched_by_gemm(), ElementsAre(StartsWith("gemm_plain_")));
    EXPECT_THAT(said(), HasSubstr("it failed its trial before"));
  });
}

TEST_F(KernelTrials, OneAtWhoseTrialAProcessEndedHasFailed) {
  in_a_process([&] {
    at_its_launch([] { std::_Exit(0); });
    (void)launched_by_gemm();
    ADD_FAILURE() << "goes on";
  });
  ASSERT_EQ(verdicts().size(), 1u);
  EXPECT_EQ(test::read_text(verdicts()[0]),
            "trying gemm_few_rows_nvfp4_16_refilled on Fake H200 number 0\n");
  for (int process = 0; process < 2; ++process) {
    in_a_process([&] {
      EXPECT_THAT(launched_by_gemm(), ElementsAre(StartsWith("gemm_plain_")));
      EXPECT_THAT(said(), HasSubstr("a process ended at its trial; without " +
                                    verdicts()[0].string() + " it is tried again"));
      EXPECT_THAT(launched_by_gemm(), ElementsAre(StartsWith("gemm_plain_")));
      EXPECT_EQ(said(), "");
    });
  }
  std::filesystem::remove(verdicts()[0]);
  in_a_process([&] { EXPECT_EQ(launched_by_gemm().size(), 5u); });
}

TEST_F(KernelTrials, OneProcessTriesAndOthersWaitForIt) {
  using std::chrono::milliseconds;
  in_a_process([&] { (void)launched_by_gemm(); });
  ASSERT_EQ(verdicts().size(), 1u);
  const std::string passed = test::read_text(verdicts()[0]);
  test::write_text(verdicts()[0], "trying");
  in_a_process([&] {
    auto first = std::make_unique<runtime::FileLock>(verdicts()[0], milliseconds(0));
    ASSERT_TRUE(first->is_held());
    const auto trials = gemm_detail::trials_on(cuda::devices()[0]);
    const auto few_rows = std::find_if(trials.begin(), trials.end(), [](const cuda::Trial& trial) {
      return trial.kernels->spec(trial.kernel, 120).name == kFewRows;
    });
    ASSERT_NE(few_rows, trials.end());
    EXPECT_FALSE(cuda::Trials(cache(), milliseconds(20)).passed(*few_rows, 0, nullptr));
    EXPECT_THAT(said(), HasSubstr("another process is at its trial"));
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(100));
      test::write_text(verdicts()[0], passed);
      first.reset();
    });
    EXPECT_THAT(launched_by_gemm(), ElementsAre(kFewRows));
    other.join();
  });
}

TEST_F(KernelTrials, LoadKernelsHoldsThem) {
  in_a_process([&] {
    EXPECT_EQ(launched([] { cuda::load_kernels(KernelsOf::quantize); }).size(), 0u);
    // Of few rows in both formats, of block scales and of their groups, each beside a plain kernel.
    EXPECT_EQ(launched([] { cuda::load_kernels(KernelsOf::gemm); }).size(), 2u * (4 + 14 + 14));
    EXPECT_EQ(launched([] { cuda::load_kernels(KernelsOf::all); }).size(), 2u * 4);
    EXPECT_EQ(launched([] { cuda::load_kernels(KernelsOf::all); }).size(), 0u);
    fake_.capturing = &fake_;
    EXPECT_THAT(launched_by_gemm(&fake_), ElementsAre(kFewRows));
  });
  EXPECT_EQ(verdicts().size(), 32u);
}

/// A kernel that groups use too may fail that alone.
TEST_F(KernelTrials, EachUseOfAKernelHasAVerdict) {
  in_a_process([&] {
    GemmArguments x;
    x.a = operand(Recipe::fp8_row, 4, 0);
    x.b = operand(Recipe::fp8_row, 64, 2);
    x.d = {memory(4), Format::bf16, 4, 64};
    GroupedGemmArguments groups;
    groups.a = x.a;
    groups.b = x.b;
    groups.b.batch = 4;
    groups.d = x.d;
    groups.offsets = reinterpret_cast<const std::int32_t*>(memory(5));
    const auto kernel = StartsWith("gemm_block_scaled_fp8_fp8_32x128");
    EXPECT_EQ(launched([&] { cuda::gemm(x); }).size(), 2u * 2 + 1);
    spoil("block_scaled");
    EXPECT_THAT(
        launched([&] { cuda::grouped_gemm(groups); }),
        ElementsAre(kernel, StartsWith("grouped_gemm_plain_"), StartsWith("grouped_gemm_plain_")));
    EXPECT_THAT(said(), HasSubstr("place of gemm_block_scaled_fp8_fp8_32x128 for groups"));
    EXPECT_THAT(launched([&] { cuda::gemm(x); }), ElementsAre(kernel));
  });
  EXPECT_EQ(verdicts().size(), 3u);
}

TEST_F(KernelTrials, HopperHasNone) {
  in_a_process([&] {
    fake_.compute_capability = 90;
    EXPECT_EQ(launched_by_gemm().size(), 1u);
    EXPECT_EQ(fake_.calls["cuStreamIsCapturing"], 0);
  });
  EXPECT_THAT(verdicts(), IsEmpty());
}

}  // namespace
}  // namespace blockscale
