#include "blockscale/parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

namespace blockscale {
namespace {

int asked_for = 0;  // threads, by the last call of run_by_threads

void run_by_threads(int workers, void (*work)(void*), void* data) {
  asked_for = workers;
  std::vector<std::thread> threads;
  for (int i = 1; i < workers; ++i) threads.emplace_back(work, data);
  work(data);
  for (std::thread& thread : threads) thread.join();
}

void run_by_the_caller(int, void (*work)(void*), void* data) {
  work(data);
}

/// How often each of 1000 numbers was in a piece of at most 7.
std::vector<int> counts(int threads) {
  std::vector<std::atomic<int>> seen(1000);
  parallel_for(std::ssize(seen), 7, threads, [&](std::int64_t begin, std::int64_t end) {
    EXPECT_TRUE(begin % 7 == 0 && end == std::min<std::int64_t>(begin + 7, 1000));
    for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
  });
  return {seen.begin(), seen.end()};
}

class ParallelTest : public testing::TestWithParam<ParallelRunner> {
 protected:
  ParallelTest() { run_parallel_by(GetParam()); }
  ~ParallelTest() override { run_parallel_by(nullptr); }
};

TEST_P(ParallelTest, EachPieceOnce) {
  for (const int threads : {1, 2, 5}) {
    EXPECT_EQ(counts(threads), std::vector<int>(1000, 1)) << threads;
  }
}

TEST_P(ParallelTest, NestedCalls) {
  std::atomic<int> calls = 0;
  parallel_for(10, 1, 3, [&](std::int64_t, std::int64_t) {
    parallel_for(10, 1, 3, [&](std::int64_t, std::int64_t) { ++calls; });
  });
  EXPECT_EQ(calls, 100);
}

TEST_P(ParallelTest, AnExceptionComesBackAndNothingElseBegins) {
  std::atomic<int> begun = 0;
  const auto body = [&](std::int64_t, std::int64_t) {
    ++begun;
    throw std::runtime_error("of a piece");
  };
  EXPECT_THROW(parallel_for(1000, 1, 2, body), std::runtime_error);
  EXPECT_LT(begun, 1000);
  EXPECT_EQ(counts(2), std::vector<int>(1000, 1));
}

INSTANTIATE_TEST_SUITE_P(By, ParallelTest,
                         testing::Values(nullptr, run_by_threads, run_by_the_caller));

TEST(ParallelRunnerTest, IsAskedForAsManyThreadsAsACallMayHave) {
  run_parallel_by(run_by_threads);
  const int all = effective_threads(0);
  const auto asked = [](int threads) {
    asked_for = 0;
    parallel_for(3, 1, threads, [](std::int64_t, std::int64_t) {});
    return asked_for;
  };
  EXPECT_EQ(asked(0), all == 1 ? 0 : all);
  EXPECT_EQ(asked(2), all == 1 ? 1 : 2);
  EXPECT_EQ(asked(100'000), all);
  EXPECT_EQ(asked(1), 0);
  asked_for = 0;
  parallel_for(30, 30, 4, [](std::int64_t, std::int64_t) {});  // one piece
  EXPECT_EQ(asked_for, 0);
  run_parallel_by(nullptr);
}

}  // namespace
}  // namespace blockscale
