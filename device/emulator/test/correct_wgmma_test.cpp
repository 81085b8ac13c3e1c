// Correct programs with wgmma: no report under any schedule, and the product of a plain loop.
#include "core/format.h"
#include "device/emulator/test/correct_test_support.h"
#include "device/emulator/test/wgmma_test_support.h"
#include "device/ptx/setmaxnreg.h"

namespace blockscale::emulator {
namespace {

using ptx::WgmmaElement;
using enum TensorMapSwizzle;

constexpr Format format_of(WgmmaElement element) {
  return meaning::kWgmmaFormats[static_cast<std::size_t>(element)];
}

/// Small integers, so that all sums are exact.
float small(uint32_t i) {
  return static_cast<float>((i * 2654435761u >> 20) % 9) - 4;
}

/// A matrix of `rows` rows of `k` elements, as numbers and as codes.
struct Matrix {
  uint32_t rows, k;
  std::vector<float> values;
  std::vector<uint8_t> bytes;

  Matrix(WgmmaElement element, uint32_t row_count, uint32_t length, uint32_t seed)
      : rows(row_count), k(length) {
    const Format format = format_of(element);
    const uint32_t size = static_cast<uint32_t>(format_traits(format).bits) / 8;
    for (uint32_t i = 0; i < rows * k; ++i) {
      values.push_back(small(i + seed));
      const uint32_t code = encode(format, values.back());
      for (uint32_t byte = 0; byte < size; ++byte) {
        bytes.push_back(static_cast<uint8_t>(code >> 8 * byte));
      }
    }
  }
};

/// One kernel for all: warpgroups of 64 rows each that share B, a warp that loads, two stages.
struct Case {
  WgmmaElement a = WgmmaElement::e4m3;
  WgmmaElement b = WgmmaElement::e4m3;
  int n = 64;
  TensorMapSwizzle swizzle = bytes_128;
  uint32_t warpgroups = 1;
  uint32_t blocks = 4;  // of k, a span each
  bool a_in_registers = false;
};

template <Case kCase>
constexpr uint32_t kSpan = swizzle_span(kCase.swizzle);
template <Case kCase>
constexpr uint32_t kBytesOfA = 64 * kCase.warpgroups * kSpan<kCase>;
template <Case kCase>
constexpr uint32_t kBytesOfB = kCase.n * kSpan<kCase>;
template <Case kCase>
constexpr uint32_t kStageBytes = (kBytesOfA<kCase> + kBytesOfB<kCase> + 1023) / 1024 * 1024;

template <Case kCase>
ptx::SharedAddress stage_at(uint32_t block) {
  return device::shared_base() + 1024 + block % 2 * kStageBytes<kCase>;
}

void init_pipeline(uint32_t consumers) {
  for (uint32_t i = 0; i < 2; ++i) {
    ptx::mbarrier_init(device::shared_base() + 8 * i, 1, "full");
    ptx::mbarrier_init(device::shared_base() + 16 + 8 * i, consumers, "empty");
  }
  ptx::fence_mbarrier_init();
}

template <Case kCase>
void produce(const TensorMap& a, const TensorMap& b) {
  const ptx::SharedAddress full = device::shared_base(), empty = full + 16;
  for (uint32_t block = 0; block < kCase.blocks; ++block) {
    const uint32_t slot = 8 * (block % 2);
    device::mbarrier_wait(empty + slot, (block / 2 & 1) ^ 1);
    if (!ptx::elect_sync()) continue;
    const auto column = static_cast<int32_t>(block * kSpan<kCase>);  // maps are of bytes
    ptx::mbarrier_arrive_expect_tx(full + slot, kBytesOfA<kCase> + kBytesOfB<kCase>);
    ptx::cp_async_bulk_tensor_shared_global<2>(stage_at<kCase>(block), &a, {{column, 0}},
                                               full + slot);
    ptx::cp_async_bulk_tensor_shared_global<2>(stage_at<kCase>(block) + kBytesOfA<kCase>, &b,
                                               {{column, 0}}, full + slot);
  }
}

/// This thread's part of 64 rows of 32 bytes.
template <Case kCase>
ptx::WgmmaFragmentA load_a(ptx::SharedAddress rows, uint32_t k) {
  ptx::WgmmaFragmentA a;
  for (uint32_t i = 0; i < 4; ++i) {
    const auto place = meaning::wgmma_place_of_a(ptx::tid_x() % 128, i);
    const uint32_t plain = rows.value + place.row * kSpan<kCase> + 32 * k + place.column;
    a.set(static_cast<int>(i),
          ptx::ld_shared<uint32_t>({meaning::swizzle_address(plain, kCase.swizzle)}));
  }
  return a;
}

template <Case kCase>
void consume(float* out) {
  const ptx::SharedAddress full = device::shared_base(), empty = full + 16;
  const uint32_t warpgroup = ptx::tid_x() / 128;
  ptx::WgmmaAccumulator<kCase.n> d;
  for (uint32_t block = 0; block < kCase.blocks; ++block) {
    const uint32_t slot = 8 * (block % 2);
    device::mbarrier_wait(full + slot, block / 2 & 1);
    const ptx::SharedAddress a = stage_at<kCase>(block) + warpgroup * 64 * kSpan<kCase>;
    const ptx::SharedAddress b = stage_at<kCase>(block) + kBytesOfA<kCase>;
    ptx::WgmmaFragmentA fragments[4];
    if constexpr (kCase.a_in_registers) {
      for (uint32_t k = 0; k < kSpan<kCase> / 32; ++k) fragments[k] = load_a<kCase>(a, k);
    }
    ptx::wgmma_fence(d);
    for (uint32_t k = 0; k < kSpan<kCase> / 32; ++k) {
      const bool accumulate = block + k != 0;
      if constexpr (kCase.a_in_registers) {
        ptx::wgmma_mma_async<kCase.a, kCase.b>(
            d, fragments[k], ptx::wgmma_descriptor(b + 32 * k, kCase.swizzle), accumulate);
      } else {
        ptx::wgmma_mma_async<kCase.a, kCase.b>(d, ptx::wgmma_descriptor(a + 32 * k, kCase.swizzle),
                                               ptx::wgmma_descriptor(b + 32 * k, kCase.swizzle),
                                               accumulate);
      }
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>(d);
    if (kCase.a_in_registers) ptx::bar_warp_sync(ptx::kFullMask);  // all lanes have read A
    if (ptx::laneid() == 0) ptx::mbarrier_arrive(empty + slot);
  }
  for (uint32_t i = 0; i < kCase.n / 2; ++i) {
    const auto place = meaning::wgmma_place_of_d(ptx::tid_x() % 128, i);
    ptx::st_global(out + (64 * warpgroup + place.row) * kCase.n + place.column,
                   d.get(static_cast<int>(i)));
  }
}

template <Case kCase>
void expect_product() {
  constexpr uint32_t kRows = 64 * kCase.warpgroups;
  const uint32_t size = static_cast<uint32_t>(format_traits(format_of(kCase.a)).bits) / 8;
  const uint32_t k = kCase.blocks * kSpan<kCase> / size;
  const Matrix a(kCase.a, kRows, k, 1), b(kCase.b, kCase.n, k, 7919);
  std::vector<float> out(kRows * kCase.n);
  const TensorMap a_map =
      encode_tensor_map(rows_map(a.bytes, kRows, k * size, kRows, kCase.swizzle));
  const TensorMap b_map =
      encode_tensor_map(rows_map(b.bytes, kCase.n, k * size, kCase.n, kCase.swizzle));
  const auto kernel = [&] {
    if (ptx::tid_x() == 0) init_pipeline(4 * kCase.warpgroups);
    ptx::barrier_sync_all();
    if (device::warp_index() == 4 * kCase.warpgroups) return produce<kCase>(a_map, b_map);
    consume<kCase>(out.data());
  };
  expect_clean({{.block = {kRows * 2 + 32}, .dynamic_shared_bytes = 1024 + 2 * kStageBytes<kCase>},
                {input("a", a.bytes), input("b", b.bytes), output("out", out)},
                kernel},
               [&] {
                 for (uint32_t row = 0; row < kRows; ++row) {
                   for (uint32_t column = 0; column < kCase.n; ++column) {
                     float sum = 0;
                     for (uint32_t i = 0; i < k; ++i) {
                       sum += a.values[row * k + i] * b.values[column * k + i];
                     }
                     ASSERT_EQ(out[row * kCase.n + column], sum) << row << " " << column;
                   }
                 }
                 std::fill(out.begin(), out.end(), -1.0f);
               });
}

TEST(CorrectWgmma, E4m3) {
  expect_product<Case{}>();
}

TEST(CorrectWgmma, TwoWarpgroupsShareB) {
  expect_product<Case{.n = 128, .warpgroups = 2}>();
}

TEST(CorrectWgmma, E5m2MeetsE4m3) {
  expect_product<Case{.a = WgmmaElement::e5m2, .n = 40, .swizzle = bytes_64}>();
}

TEST(CorrectWgmma, E4m3MeetsE5m2) {
  expect_product<Case{.b = WgmmaElement::e5m2, .n = 8, .swizzle = bytes_32}>();
}

TEST(CorrectWgmma, Bf16) {
  expect_product<Case{.a = WgmmaElement::bf16, .b = WgmmaElement::bf16, .n = 256}>();
}

TEST(CorrectWgmma, F16) {
  expect_product<Case{
      .a = WgmmaElement::f16, .b = WgmmaElement::f16, .n = 24, .swizzle = bytes_32}>();
}

TEST(CorrectWgmma, AInRegisters) {
  expect_product<Case{.n = 72, .warpgroups = 2, .a_in_registers = true}>();
}

TEST(CorrectWgmma, Bf16AInRegisters) {
  expect_product<Case{.a = WgmmaElement::bf16,
                      .b = WgmmaElement::bf16,
                      .swizzle = bytes_64,
                      .a_in_registers = true}>();
}

/// Two sets of accumulators: the products of a block run while those before it are promoted. A
/// warpgroup loads, and gives its registers to the other.
constexpr Case kOverlap = {.blocks = 7};

void issue(uint32_t block, ptx::WgmmaAccumulator<64>& d) {
  const ptx::SharedAddress a = stage_at<kOverlap>(block), b = a + kBytesOfA<kOverlap>;
  device::mbarrier_wait(device::shared_base() + 8 * (block % 2), block / 2 & 1);
  ptx::wgmma_fence(d);
  for (uint32_t k = 0; k < 4; ++k) {
    ptx::wgmma_mma_async<WgmmaElement::e4m3, WgmmaElement::e4m3>(
        d, ptx::wgmma_descriptor(a + 32 * k, bytes_128),
        ptx::wgmma_descriptor(b + 32 * k, bytes_128), k != 0);
  }
  ptx::wgmma_commit_group();
}

void promote(uint32_t block, ptx::WgmmaAccumulator<64>& d, float* sums) {
  if (ptx::laneid() == 0) {
    ptx::mbarrier_arrive(device::shared_base() + 16 + 8 * (block % 2));
  }
  for (int i = 0; i < 32; ++i) sums[i] += static_cast<float>(block + 1) * d.get(i);
}

void consume_overlapped(float* out) {
  ptx::setmaxnreg_inc<232>();
  ptx::WgmmaAccumulator<64> d[2];
  float sums[32] = {};
  issue(0, d[0]);
  for (uint32_t block = 1; block < kOverlap.blocks; ++block) {
    issue(block, d[block % 2]);
    ptx::wgmma_wait_group<1>(d[(block - 1) % 2]);
    promote(block - 1, d[(block - 1) % 2], sums);
  }
  constexpr uint32_t kLast = kOverlap.blocks - 1;
  ptx::wgmma_wait_group<0>(d[kLast % 2]);
  promote(kLast, d[kLast % 2], sums);
  for (uint32_t i = 0; i < 32; ++i) {
    const auto place = meaning::wgmma_place_of_d(ptx::tid_x() % 128, i);
    ptx::st_global(out + place.row * 64 + place.column, sums[i]);
  }
}

TEST(CorrectWgmma, PromotionOverlapsProducts) {
  constexpr uint32_t kK = kOverlap.blocks * 128;
  const Matrix a(WgmmaElement::e4m3, 64, kK, 1), b(WgmmaElement::e4m3, 64, kK, 7919);
  std::vector<float> out(64 * 64);
  const TensorMap a_map = encode_tensor_map(rows_map(a.bytes, 64, kK, 64, bytes_128));
  const TensorMap b_map = encode_tensor_map(rows_map(b.bytes, 64, kK, 64, bytes_128));
  const auto kernel = [&] {
    if (ptx::tid_x() == 0) init_pipeline(4);
    ptx::barrier_sync_all();
    if (device::warp_index() < 4) return consume_overlapped(out.data());
    ptx::setmaxnreg_dec<40>();
    if (device::warp_index() == 4) produce<kOverlap>(a_map, b_map);
  };
  expect_clean({{.block = {256}, .dynamic_shared_bytes = 1024 + 2 * kStageBytes<kOverlap>},
                {input("a", a.bytes), input("b", b.bytes), output("out", out)},
                kernel},
               [&] {
                 for (uint32_t i = 0; i < out.size(); ++i) {
                   float sum = 0;
                   for (uint32_t k = 0; k < kK; ++k) {
                     const uint32_t block = k / 128;
                     sum += static_cast<float>(block + 1) * a.values[i / 64 * kK + k] *
                            b.values[i % 64 * kK + k];
                   }
                   ASSERT_EQ(out[i], sum) << i;
                 }
               });
}

// Rows that threads write themselves, behind a proxy fence of each and a barrier.
TEST(CorrectWgmma, OperandsThatThreadsWrite) {
  std::vector<float> out(64 * 8);
  const auto kernel = [&] {
    const ptx::SharedAddress a = device::shared_base(), b = a + 2048;
    const uint32_t one = 0x38383838;  // four of e4m3
    for (uint32_t i = ptx::tid_x(); i < 576; i += 128) ptx::st_shared(a + 4 * i, one);
    ptx::fence_proxy_async_shared();
    ptx::barrier_sync_all();
    ptx::WgmmaAccumulator<8> d;
    for (int i = 0; i < 4; ++i) d.set(i, static_cast<float>(ptx::tid_x()));
    ptx::wgmma_fence(d);
    ptx::wgmma_mma_async<WgmmaElement::e4m3, WgmmaElement::e4m3>(
        d, ptx::wgmma_descriptor(a, bytes_32), ptx::wgmma_descriptor(b, bytes_32), true);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>(d);
    ptx::barrier_sync_all();
    ptx::st_shared(a + 16 * ptx::tid_x(), 0u);  // nobody reads it any more
    for (uint32_t i = 0; i < 4; ++i) {
      ptx::st_global(out.data() + 4 * ptx::tid_x() + i, d.get(static_cast<int>(i)));
    }
  };
  expect_clean({{.block = {128}, .dynamic_shared_bytes = 4096}, {output("out", out)}, kernel}, [&] {
    for (uint32_t i = 0; i < out.size(); ++i) {
      const uint32_t thread = i / 4;
      ASSERT_EQ(out[i], static_cast<float>(32 + thread));
    }
  });
}

}  // namespace
}  // namespace blockscale::emulator
