// cuda::gemm on a GPU against the float64 reference and its committed bound.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "blockscale/cuda.h"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/test/worst_codes.h"
#include "ops/gemm/validate.h"
#include "runtime/cuda/measure.h"
#include "tests/expect_error.h"
#include "tests/gemm_problem.h"
#include "tests/gpu.h"

namespace blockscale {
namespace {

using runtime::DeviceBuffer;
using test::InputFamily;
using test::Random;

DeviceBuffer copy_of(const void* data, std::size_t bytes) {
  DeviceBuffer buffer(bytes);
  if (bytes != 0) buffer.copy_from_host(data, bytes);
  return buffer;
}

/// A product of random operands, and where its operands lie on the device: exact allocations, so
/// that a sanitizer sees what is read beside them.
struct Problem {
  std::int64_t m = 128, n = 128, k = 256, batch = 1;
  Recipe a = Recipe::fp8_1x128, b = Recipe::fp8_128x128;
  ScaleLayout a_layout = ScaleLayout::row_major, b_layout = ScaleLayout::row_major;
  Format d = Format::bf16;
  InputFamily family = InputFamily::adversarial;
  float alpha = 1, beta = 0;
  bool bias = false, gate = false, alpha_factor = false;
  std::int64_t extra_row_bytes = 0, extra_leading = 0, extra_columns = 0;
  bool a_shared = false;  // one A for all matrices
  bool exact = false;     // integers from 0 to 8, scales from 1/8 to 8

  std::string str() const {
    return std::to_string(m) + " x " + std::to_string(n) + " x " + std::to_string(k) + " batch " +
           std::to_string(batch) + " " + recipe_traits(a).name + " " +
           scale_layout_traits(a_layout).name + " x " + recipe_traits(b).name + " " +
           scale_layout_traits(b_layout).name + " to " + format_traits(d).name;
  }
};

class OnDevice {
 public:
  explicit OnDevice(const Problem& p)
      : random_(static_cast<std::uint64_t>(p.m * 7 + p.n * 3 + p.k)),
        a_(random_, p.a, p.m, p.k, p.family, options(p, p.a_layout, p.a_shared ? 1 : p.batch)),
        b_(random_, p.b, p.n, p.k, p.family, options(p, p.b_layout, p.batch)),
        c_(p.d, p.m, p.n, p.batch, 3),
        d_(p.d, p.m, p.n, p.batch, p.extra_columns),
        bias_(Format::f32, 1, p.n),
        gate_(Format::f16, 1, p.n) {
    if (p.exact) {
      make_exact(a_);
      make_exact(b_);
    }
    c_.fill(random_, InputFamily::normal);
    bias_.fill(random_, InputFamily::normal);
    gate_.fill(random_, InputFamily::normal);
    host_.a = a_.view();
    host_.b = b_.view();
    host_.d = d_.view();
    host_.alpha = p.alpha;
    host_.beta = p.beta;
    host_.c = c_.view();
    if (p.bias) host_.bias = bias_.view().data;
    if (p.gate) host_.gate = gate_.view().data;
    host_.gate_dtype = Format::f16;
    if (p.alpha_factor) host_.alpha_factor = &factor_;
    there_ = host_;
    move_operand(there_.a);
    move_operand(there_.b);
    there_.c.data = move_matrix(c_);
    there_.d.data = move_matrix(d_);
    if (p.bias) there_.bias = move_matrix(bias_);
    if (p.gate) there_.gate = move_matrix(gate_);
    if (p.alpha_factor) {
      memory_.push_back(copy_of(&factor_, sizeof factor_));
      there_.alpha_factor = reinterpret_cast<const float*>(memory_.back().data());
    }
    d_there_ = static_cast<std::byte*>(there_.d.data) - test::TestMatrix::kGuard;
    fresh_d_ = d_.bytes();
  }

  const GemmArguments& arguments() const { return there_; }

  /// D is poison on the device again, so that what an earlier call left is not taken for a result.
  void poison_d() {
    for (DeviceBuffer& buffer : memory_) {
      if (buffer.data() == d_there_) buffer.copy_from_host(fresh_d_.data(), buffer.bytes());
    }
  }
  /// A's values and scales on the device are NaN.
  void poison_a() {
    memory_[0].fill(0xFF);
    memory_[1].fill(0xFF);
  }

  /// D's bytes, as the device left them.
  const std::vector<std::uint8_t>& download() {
    auto* const host = static_cast<std::byte*>(host_.d.data) - test::TestMatrix::kGuard;
    for (const DeviceBuffer& buffer : memory_) {
      if (buffer.data() == d_there_) buffer.copy_to_host(host, buffer.bytes());
    }
    EXPECT_TRUE(d_.is_poison_intact());
    return d_.bytes();
  }
  /// The same beside the reference.
  test::ErrorReport compare(const gemm_detail::ErrorLimit& limit) {
    (void)download();
    return test::compare(host_, limit);
  }

 private:
  static test::OperandOptions options(const Problem& p, ScaleLayout layout, std::int64_t batch) {
    test::OperandOptions o;
    o.layout = layout;
    o.batch = batch;
    o.extra_row_bytes = p.extra_row_bytes;
    o.extra_leading = p.extra_leading;
    o.smallest_scales = false;  // products of scales are f32 numbers
    return o;
  }
  void make_exact(test::TestOperand& operand) {
    const MutableScaledTensorView x = operand.mutable_view();
    for (std::int64_t i = 0; i < x.rows * x.value_row_stride; ++i) {
      static_cast<std::uint8_t*>(x.values)[i] = static_cast<std::uint8_t>(
          encode(Format::e4m3, static_cast<float>(test::uniform(random_, 0, 8))));
    }
    const ScaleGrid grid = scale_grid(x.recipe, x.rows, x.k);
    for (std::int64_t i = 0; i < grid.rows; ++i) {
      for (std::int64_t j = 0; j < grid.columns; ++j) {
        const float scale = std::exp2(static_cast<float>(test::uniform(random_, -3, 3)));
        operand.set_scale(i, j, bit_cast<std::uint32_t>(scale));
      }
    }
  }
  void move_operand(ScaledTensorView& x) {
    const auto rows = x.batch * x.value_batch_stride;
    const std::int64_t values = rows - (x.rows > 0 ? x.value_row_stride - x.k : 0);
    const RecipeTraits& t = recipe_traits(x.recipe);
    const ScaleGrid grid = scale_grid(x.recipe, x.rows, x.k);
    const std::int64_t scales =
        ((x.batch - 1) * x.scale_batch_stride +
         scale_count(x.layout, grid.rows, grid.columns, x.scale_leading_stride)) *
        (format_traits(t.scale).bits / 8);
    memory_.push_back(
        copy_of(x.values, static_cast<std::size_t>(std::max<std::int64_t>(values, 0))));
    x.values = memory_.back().data();
    memory_.push_back(copy_of(x.scales, static_cast<std::size_t>(scales)));
    x.scales = memory_.back().data();
  }
  std::byte* move_matrix(const test::TestMatrix& matrix) {
    memory_.push_back(copy_of(matrix.bytes().data(), matrix.bytes().size()));
    return memory_.back().data() + test::TestMatrix::kGuard;
  }

  Random random_;
  test::TestOperand a_, b_;
  test::TestMatrix c_, d_, bias_, gate_;
  float factor_ = 0.375f;
  GemmArguments host_, there_;
  std::vector<DeviceBuffer> memory_;
  std::byte* d_there_ = nullptr;
  std::vector<std::uint8_t> fresh_d_;
};

/// Of Hopper's FP8 tensor cores (docs/numerics.md, "Error bound").
constexpr gemm_detail::ErrorLimit kUsual =
    gemm_detail::usual_error(gemm_detail::GemmPath::sm90_fp8);

void check(const Problem& p) {
  SCOPED_TRACE(p.str());
  OnDevice problem(p);
  const runtime::DeviceStream stream;
  const std::int64_t needed = cuda::gemm_workspace_bytes(problem.arguments());
  const DeviceBuffer workspace(static_cast<std::size_t>(needed));
  cuda::gemm(problem.arguments(), {stream.handle(), workspace.data(), needed});
  stream.wait();
  const test::ErrorReport report = problem.compare(kUsual);
  EXPECT_EQ(report.violations, 0) << "of " << report.elements << ", largest "
                                  << report.largest_ratio;
}

class CudaGpuGemm : public test::OnHopper {};

/// Runs a problem by every choice that can compute it; the most rows that a tile had.
int check_choices(const Problem& p) {
  OnDevice problem(p);
  const GemmArguments x = gemm_detail::validated(problem.arguments(), {});
  const runtime::DeviceStream stream;
  int most_rows = 0;
  for (const gemm_detail::Fp8LaunchConfig& choice :
       gemm_detail::fp8_launch_configs(gemm_detail::size_of(x), {})) {
    SCOPED_TRACE(gemm_detail::plan_fp8_gemm(x, {}, choice).str());
    problem.poison_d();
    gemm_detail::launch_gemm(problem.arguments(), choice, {stream.handle()});
    stream.wait();
    const test::ErrorReport report = problem.compare(kUsual);
    EXPECT_EQ(report.violations, 0) << "largest " << report.largest_ratio;
    most_rows = std::max(most_rows, choice.rows);
  }
  return most_rows;
}

TEST_F(CudaGpuGemm, EveryChoice) {
  for (const Recipe b : {Recipe::fp8_128x128, Recipe::fp8_1x128}) {
    Problem p;
    p.m = 150;
    p.n = 200;
    p.k = 1100 / 16 * 16;
    p.b = b;
    check_choices(p);
  }
}

/// Chunks of scales that end with K and in its middle, of tiles that lie partly outside of D.
TEST_F(CudaGpuGemm, EveryChoiceWhereScalesCanBeCopied) {
  using enum ScaleLayout;
  for (const auto& [a, b, k] :
       {std::tuple{row_major, row_major, 1000}, std::tuple{row_major, mn_major, 512},
        std::tuple{mn_major, mn_major, 848}}) {
    Problem p;
    p.m = 500;
    p.n = 1000;
    p.k = k / 16 * 16;
    p.batch = 2;
    p.a_layout = a;
    p.b_layout = b;
    EXPECT_EQ(check_choices(p), 192);
  }
}

TEST_F(CudaGpuGemm, EveryRecipeAndLayout) {
  const Recipe recipes[] = {Recipe::fp8_tensor,       Recipe::fp8_row,
                            Recipe::fp8_1x128,        Recipe::fp8_32x128,
                            Recipe::fp8_64x128,       Recipe::fp8_128x128,
                            Recipe::fp8_1x128_pow2,   Recipe::fp8_1x128_ue8m0,
                            Recipe::fp8_32x128_ue8m0, Recipe::fp8_128x128_ue8m0};
  for (const Recipe a : recipes) {
    for (const Recipe b : recipes) {
      if (!gemm_supports(a, b)) continue;
      for (const ScaleLayout layout : {ScaleLayout::row_major, ScaleLayout::mn_major}) {
        Problem p;
        p.m = 70;
        p.n = 136;
        p.k = 400;
        p.a = a;
        p.b = b;
        p.a_layout = p.b_layout = layout;
        p.extra_leading = 3;
        check(p);
      }
    }
  }
}

TEST_F(CudaGpuGemm, SwizzledScales) {
  for (const ScaleLayout layout : {ScaleLayout::swizzled_128x4, ScaleLayout::swizzled_8x4}) {
    Problem p;
    p.m = 200;
    p.n = 300;
    p.k = 1040;
    p.a = p.b = Recipe::fp8_1x128_ue8m0;
    p.a_layout = p.b_layout = layout;
    check(p);
  }
}

TEST_F(CudaGpuGemm, EdgesAndShards) {
  for (const std::int64_t m : {1, 2, 63, 64, 65, 127, 129}) {
    for (const std::int64_t n : {1, 7, 8, 64, 80, 192, 576}) {
      for (const std::int64_t k : {16, 80, 128, 192, 576}) check({.m = m, .n = n, .k = k});
    }
  }
}

TEST_F(CudaGpuGemm, RowsAtOddMultiplesOf16Bytes) {
  check({.m = 300, .n = 2100, .k = 1040});
  check({.m = 2100, .n = 300, .k = 1040});
  check({.m = 2100, .n = 2100, .k = 1040});
}

TEST_F(CudaGpuGemm, OneRowOfLongK) {
  for (const Recipe b :
       {Recipe::fp8_128x128, Recipe::fp8_128x128_ue8m0, Recipe::fp8_tensor, Recipe::fp8_row}) {
    for (const std::int64_t n : {1, 139}) {
      for (const std::int64_t k : {4096, 4112, 7168}) {
        Problem p;
        p.a = recipe_traits(b).block_k == 0 ? b : Recipe::fp8_1x128;
        p.b = b;
        p.m = 1;
        p.n = n;
        p.k = k;
        p.beta = 0.5f;
        p.bias = true;
        p.gate = n == 139;
        check(p);
      }
    }
  }
}

TEST_F(CudaGpuGemm, Epilogues) {
  for (const Format d : {Format::bf16, Format::f16, Format::f32}) {
    for (const std::int64_t extra : {0, 1, 8}) {
      Problem p;
      p.m = 90;
      p.n = 121;
      p.d = d;
      p.family = InputFamily::normal;
      p.alpha = d == Format::f16 ? 0.001f : -0.75f;
      p.beta = 0.5f;
      p.bias = true;
      p.gate = extra != 1;
      p.alpha_factor = true;
      p.extra_columns = extra;
      p.extra_row_bytes = 16;
      check(p);
    }
  }
}

TEST_F(CudaGpuGemm, RowsThatBeginAnywhere) {
  for (const std::int64_t extra : {1, 5, 8}) {
    Problem p;
    p.m = 77;
    p.n = 140;
    p.k = extra == 8 ? 640 : 643;
    p.batch = 2;
    p.extra_row_bytes = extra;
    check(p);
  }
  Problem p;
  p.extra_row_bytes = 1;
  const OnDevice problem(p);
  test::expect_error(ErrorCode::invalid_argument, "execution.workspace_bytes",
                     "is 0, must be at least 65536", [&] { cuda::gemm(problem.arguments()); });
}

/// A launch beside another one's last wave: the columns of both, and what comes before and after.
TEST_F(CudaGpuGemm, LastColumnsBesideALastWave) {
  Problem p;
  p.m = 2048;
  p.n = 1184;
  p.k = 4096;
  p.b = Recipe::fp8_1x128;
  p.family = InputFamily::normal;
  EXPECT_NE(cuda::describe_gemm(OnDevice(p).arguments()).find("beside its last wave"),
            std::string::npos);
  check(p);
}

TEST_F(CudaGpuGemm, BatchInvariantRows) {
  Problem p;
  p.m = 700;
  p.n = 576;
  p.k = 2048;
  p.family = InputFamily::normal;
  OnDevice problem(p);
  const runtime::DeviceStream stream;
  std::vector<std::uint8_t> all;
  for (const std::int64_t m : {700, 1, 8, 17, 64, 65, 129, 300}) {
    GemmArguments x = problem.arguments();
    x.a.rows = x.d.rows = m;
    x.batch_invariant = true;
    problem.poison_d();
    cuda::gemm(x, {stream.handle()});
    stream.wait();
    const std::vector<std::uint8_t> d = problem.download();
    if (all.empty()) all = d;
    const auto bytes = static_cast<std::ptrdiff_t>(test::TestMatrix::kGuard) + m * p.n * 2;
    EXPECT_TRUE(std::equal(d.begin(), d.begin() + bytes, all.begin())) << m << " rows";
  }
}

TEST_F(CudaGpuGemm, Batches) {
  Problem p;
  p.m = 100;
  p.n = 72;
  p.batch = 3;
  check(p);
  p.a_shared = true;
  check(p);
}

TEST_F(CudaGpuGemm, FewRows) {
  for (const Recipe recipe : {Recipe::fp8_1x128, Recipe::fp8_row, Recipe::fp8_128x128_ue8m0}) {
    for (const std::int64_t m : {1, 3, 8}) {
      Problem p;
      p.m = m;
      p.a = p.b = recipe;
      for (const std::int64_t n : {1, 75, 576}) {
        for (const std::int64_t k : {16, 512, 1200}) {
          p.n = n;
          p.k = k;
          p.batch = n == 75 ? 2 : 1;
          check(p);
        }
      }
    }
  }
}

/// Integers and powers of two, which tensor cores sum exactly: nothing but D's own rounding is
/// allowed, so that one partial sum in bf16 would be found.
TEST_F(CudaGpuGemm, ExactSums) {
  for (const std::int64_t m : {1, 8, 64, 300}) {
    Problem p;
    p.m = m;
    p.n = 264;
    p.k = 1024;
    p.d = Format::f32;
    p.exact = true;
    SCOPED_TRACE(p.str());
    OnDevice problem(p);
    const runtime::DeviceStream stream;
    cuda::gemm(problem.arguments(), {stream.handle()});
    stream.wait();
    EXPECT_EQ(problem.compare({}).violations, 0);
  }
}

/// The inputs that are known to be worst: what the recorded rule says, far from exact.
TEST_F(CudaGpuGemm, WorstKnownSums) {
  const std::pair<test::CodePair, float> cases[] = {{test::worst_normal_codes(), 65536.0f},
                                                    {test::worst_subnormal_codes(), 0.5f}};
  for (const auto& [codes, sum] : cases) {
    const auto on_device = [](const std::vector<std::uint32_t>& row) {
      const std::vector<std::uint8_t> bytes(row.begin(), row.end());
      DeviceBuffer buffer(bytes.size());
      buffer.copy_from_host(bytes.data(), bytes.size());
      return buffer;
    };
    DeviceBuffer a = on_device(codes.a), b = on_device(codes.b), d(4), scale(4);
    const float one = 1;
    scale.copy_from_host(&one, 4);
    for (const Recipe recipe : {Recipe::fp8_1x128, Recipe::fp8_row}) {
      GemmArguments x;
      x.a = {recipe, 1, 128};
      x.b = x.a;
      x.a.values = a.data();
      x.b.values = b.data();
      x.a.scales = x.b.scales = scale.data();
      x.d = {d.data(), Format::f32, 1, 1};
      const runtime::DeviceStream stream;
      cuda::gemm(x, {stream.handle()});
      stream.wait();
      float got = 0;
      d.copy_to_host(&got, 4);
      EXPECT_EQ(got, sum) << recipe_traits(recipe).name;
    }
  }
}

/// A graph of quantize -> gemm -> gemm, each launched before the one that it waits for has ended.
TEST_F(CudaGpuGemm, ChainInAGraph) {
  constexpr std::int64_t kM = 96, kN = 256, kK = 512;
  Problem first;
  first.m = kM;
  first.n = kN;
  first.k = kK;
  first.family = InputFamily::normal;
  OnDevice one(first);
  Problem second = first;
  second.k = kN;
  OnDevice two(second);
  // What the first product stores is quantized into what the second one reads as A.
  const GemmArguments x = one.arguments(), y = two.arguments();
  MutableScaledTensorView a;
  a.recipe = y.a.recipe;
  a.rows = kM;
  a.k = kN;
  a.values = const_cast<void*>(y.a.values);
  a.scales = const_cast<void*>(y.a.scales);
  const auto chain = [&](void* stream) {
    cuda::gemm(x, {stream});
    cuda::quantize(MatrixView(x.d), a, {}, {stream});
    cuda::gemm(y, {stream});
  };
  const runtime::DeviceStream stream;
  chain(stream.handle());
  stream.wait();
  const std::vector<std::uint8_t> expected = two.download();
  const runtime::DeviceGraph graph(stream, chain);
  for (int i = 0; i < 20; ++i) {
    // Whoever reads before the kernel in front of it has written finds no numbers.
    one.poison_d();
    two.poison_a();
    two.poison_d();
    graph.launch(stream);
    stream.wait();
    ASSERT_EQ(two.download(), expected);
  }
}

/// The largest errors over 10^7 elements of each family: what ops/gemm/error_bound.h commits.
TEST_F(CudaGpuGemm, DISABLED_MeasureErrorConstants) {
  for (const InputFamily family :
       {InputFamily::normal, InputFamily::positive, InputFamily::adversarial}) {
    double largest = 0;
    std::int64_t elements = 0;
    for (const auto& [m, n, k, b] :
         {std::tuple<int, int, int, Recipe>{2000, 2000, 256, Recipe::fp8_128x128},
          {1500, 1500, 640, Recipe::fp8_1x128},
          {1600, 1600, 384, Recipe::fp8_128x128},
          {8, 4096, 1024, Recipe::fp8_1x128},
          {1200, 1200, 128, Recipe::fp8_row}}) {
      Problem p;
      p.m = m;
      p.n = n;
      p.k = k;
      p.b = b;
      if (b == Recipe::fp8_row) p.a = b;
      p.family = family;
      p.d = Format::f32;
      OnDevice problem(p);
      const runtime::DeviceStream stream;
      cuda::gemm(problem.arguments(), {stream.handle()});
      stream.wait();
      const test::ErrorReport report = problem.compare(kUsual);
      largest = std::max(largest, report.largest_share);
      elements += report.elements;
    }
    std::printf("family %d: %.2f over %lld elements\n", static_cast<int>(family), largest,
                static_cast<long long>(elements));
  }
}

TEST_F(CudaGpuGemm, EmptyK) {
  Problem p;
  p.k = 0;
  p.beta = 2;
  p.bias = true;
  p.family = InputFamily::normal;
  check(p);
}

TEST_F(CudaGpuGemm, SameBitsEachRun) {
  Problem p;
  p.m = 64;
  p.n = 576;
  p.k = 7168;
  p.family = InputFamily::normal;
  OnDevice problem(p);
  const runtime::DeviceStream stream;
  std::vector<std::uint8_t> first;
  for (int i = 0; i < 20; ++i) {
    problem.poison_d();
    cuda::gemm(problem.arguments(), {stream.handle()});
    stream.wait();
    if (i == 0) first = problem.download();
    ASSERT_EQ(problem.download(), first);
  }
}

}  // namespace
}  // namespace blockscale
