// Correct programs with boxes and gathered rows of elements of 4 and 6 bits and ldmatrix_b8x16: no
// report under any schedule, and every element where a plain loop finds it.
#include <algorithm>

#include "device/emulator/test/narrow_copy_test_support.h"
#include "device/ptx/global_memory.h"

namespace blockscale::emulator {
namespace {

constexpr LaunchShape kOneWarp = {.block = {32}, .dynamic_shared_bytes = 1024 + 16 * 128};

void expect_clean_on_sm120(const std::vector<Buffer>& buffers, const std::function<void()>& kernel,
                           const std::function<void()>& check) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const Options options = compiled_for(120, seed == 0 ? in_order() : random_order(seed));
    const Report report = launch(kOneWarp, buffers, options, kernel);
    EXPECT_TRUE(report.ok()) << report.text();
    check();
  }
}

/// A box whose last rows lie outside the tensor, and of it the two columns of matrices from
/// `column`: the words of mma.sync's A.
template <int kBits>
void expect_fragments(TensorMapElement element, TensorMapSwizzle swizzle, int32_t row) {
  const NarrowTensor tensor(element);
  const TensorMap map = encode_tensor_map(tensor.description(swizzle));
  std::vector<uint32_t> out(4 * 4 * 32);
  std::vector<Buffer> buffers = tensor.buffers();
  buffers.push_back(output("out", out));
  const auto kernel = [&] {
    load_box(map, 128, row, tensor.box_bytes());
    const uint32_t lane = ptx::laneid();
    for (uint32_t step = 0; step < 4; ++step) {
      const uint32_t chunk = 2 * step + lane / 16, box_row = lane % 16;
      const uint32_t placed = swizzle == TensorMapSwizzle::none ? chunk : chunk ^ box_row % 8;
      const auto f = ptx::ldmatrix_b8x16<kBits, 4>(stage(0) + 128 * box_row + 16 * placed);
      for (uint32_t i = 0; i < 4; ++i) {
        ptx::st_global(out.data() + (4 * step + i) * 32 + lane, f.value[i]);
      }
    }
  };
  expect_clean_on_sm120(buffers, kernel, [&] {
    for (uint32_t i = 0; i < out.size(); ++i) {
      const uint32_t lane = i % 32, word = i / 32 % 4, step = i / 128;
      const uint32_t at_row = lane / 4 + 8 * (word % 2);
      const uint32_t k = 32 * step + 16 * (word / 2) + 4 * (lane % 4);
      for (uint32_t j = 0; j < 4; ++j) {
        ASSERT_EQ(out[i] >> 8 * j & 0xFFu,
                  tensor.at(static_cast<uint32_t>(row) + at_row, 128 + k + j))
            << "row " << at_row << " k " << k + j;
      }
    }
    std::fill(out.begin(), out.end(), 0);
  });
}

TEST(CorrectNarrowCopy, FragmentsOfSixBits) {
  expect_fragments<6>(TensorMapElement::u6x16_align16b, TensorMapSwizzle::none, 0);
  expect_fragments<6>(TensorMapElement::u6x16_align16b, TensorMapSwizzle::bytes_128, 13);
}

TEST(CorrectNarrowCopy, FragmentsOfFourBits) {
  expect_fragments<4>(TensorMapElement::u4x16_align16b, TensorMapSwizzle::none, 13);
  expect_fragments<4>(TensorMapElement::u4x16_align16b, TensorMapSwizzle::bytes_128, 0);
}

/// One or two matrices; addresses of lanes beyond them may be anything.
TEST(CorrectNarrowCopy, FewerMatrices) {
  const NarrowTensor tensor(TensorMapElement::u6x16_align16b);
  const TensorMap map = encode_tensor_map(tensor.description());
  std::vector<uint32_t> out(3 * 32);
  std::vector<Buffer> buffers = tensor.buffers();
  buffers.push_back(output("out", out));
  const auto kernel = [&] {
    load_box(map, 0, 0, tensor.box_bytes());
    const uint32_t lane = ptx::laneid();
    const auto row = [&](uint32_t lanes) {
      return lane < lanes ? stage(0) + 128 * lane : ptx::SharedAddress{0xFFFFFFF1};
    };
    const auto one = ptx::ldmatrix_b8x16<6, 1>(row(8));
    const auto two = ptx::ldmatrix_b8x16<6, 2>(row(16));
    ptx::st_global(out.data() + lane, one.value[0]);
    ptx::st_global(out.data() + 32 + lane, two.value[0]);
    ptx::st_global(out.data() + 64 + lane, two.value[1]);
  };
  expect_clean_on_sm120(buffers, kernel, [&] {
    for (uint32_t i = 0; i < out.size(); ++i) {
      const uint32_t row = i % 32 / 4 + (i < 64 ? 0 : 8);
      for (uint32_t j = 0; j < 4; ++j) {
        ASSERT_EQ(out[i] >> 8 * j & 0xFFu, tensor.at(row, 4 * (i % 4) + j));
      }
    }
  });
}

/// Packed elements lie as they do in global memory.
TEST(CorrectNarrowCopy, PackedBoxes) {
  const NarrowTensor tensor(TensorMapElement::u4x16_packed);
  const TensorMap map = encode_tensor_map(tensor.description(TensorMapSwizzle::bytes_64));
  std::vector<uint32_t> out(16 * 16);
  std::vector<Buffer> buffers = tensor.buffers();
  buffers.push_back(output("out", out));
  const auto kernel = [&] {
    load_box(map, 32, 12, tensor.box_bytes());
    for (uint32_t i = ptx::laneid(); i < 256; i += 32) {
      const uint32_t plain = 4 * i;
      const uint32_t placed = plain ^ (plain >> 7 & 3) << 4;
      ptx::st_global(out.data() + i, ptx::ld_shared<uint32_t>(stage(0) + placed));
    }
  };
  expect_clean_on_sm120(buffers, kernel, [&] {
    for (uint32_t i = 0; i < out.size(); ++i) {
      for (uint32_t j = 0; j < 8; ++j) {
        ASSERT_EQ(out[i] >> 4 * j & 15u, tensor.at(12 + i / 16, 32 + i % 16 * 8 + j)) << i;
      }
    }
  });
}

/// Two lots of four, of which the second ends a swizzle's pattern. Rows come twice, in any order,
/// and from outside of the tensor.
void expect_gathered(TensorMapSwizzle swizzle) {
  constexpr int32_t kRows[2][4] = {{5, 23, 24, 5}, {-1, 0, 1 << 30, 17}};
  const NarrowTensor tensor(TensorMapElement::u4x16_packed);
  TensorMapDescription description = tensor.description(swizzle);
  description.box[1] = 1;
  const TensorMap map = encode_tensor_map(description);
  std::vector<uint32_t> out(8 * 16);
  std::vector<Buffer> buffers = tensor.buffers();
  buffers.push_back(output("out", out));
  const auto kernel = [&] {
    init_barriers(1);
    if (ptx::tid_x() == 0) {
      ptx::mbarrier_arrive_expect_tx(full(), 8 * 64);
      for (uint32_t i = 0; i < 2; ++i) {
        ptx::cp_async_bulk_tensor_shared_global_gather4(stage(0) + i * 4 * 64, &map, 96, kRows[i],
                                                        full());
      }
    }
    device::mbarrier_wait(full(), 0);
    for (uint32_t i = ptx::laneid(); i < out.size(); i += 32) {
      const uint32_t plain = 4 * i;
      const uint32_t placed =
          swizzle == TensorMapSwizzle::none ? plain : plain ^ (plain >> 7 & 3) << 4;
      ptx::st_global(out.data() + i, ptx::ld_shared<uint32_t>(stage(0) + placed));
    }
  };
  expect_clean_on_sm120(buffers, kernel, [&] {
    for (uint32_t i = 0; i < out.size(); ++i) {
      const uint32_t row = static_cast<uint32_t>(kRows[i / 64][i / 16 % 4]);
      for (uint32_t j = 0; j < 8; ++j) {
        ASSERT_EQ(out[i] >> 4 * j & 15u, tensor.at(row, 96 + i % 16 * 8 + j)) << i;
      }
    }
    std::fill(out.begin(), out.end(), ~0u);
  });
}

TEST(CorrectNarrowCopy, GatheredRows) {
  expect_gathered(TensorMapSwizzle::none);
  expect_gathered(TensorMapSwizzle::bytes_64);
}

}  // namespace
}  // namespace blockscale::emulator
