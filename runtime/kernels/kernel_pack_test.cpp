// The pack's format: what is written is read back, and nothing that is broken gets through.
#include "runtime/kernels/kernel_pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "models/testing.h"
#include "tests/expect_error.h"

namespace blockscale::runtime {
namespace {

using test::expect_error;
using test::ScratchFolder;
using ::testing::HasSubstr;

constexpr std::size_t kHashOffset = 32, kIndexOffset = 64;

CompiledKernel kernel_of(std::string name, std::size_t bytes) {
  CompiledKernel kernel;
  kernel.name = std::move(name);
  kernel.architecture = "sm_90a";
  kernel.compiler = "NVRTC 13.0 0123456789ab";
  kernel.flags = "--std=c++20 --fmad=false";
  kernel.source = {0x0123456789abcdef, bytes};
  kernel.resources = {
      .registers = 40, .spill_bytes = 1, .stack_bytes = 2, .static_shared_bytes = 1 << 20};
  for (std::size_t i = 0; i < bytes; ++i) {
    kernel.cubin.push_back(static_cast<std::byte>(i * 37 + bytes));
  }
  return kernel;
}

std::vector<CompiledKernel> three_kernels() {
  return {kernel_of("first", 1), kernel_of("second", 64), kernel_of("third", 1000)};
}

class Pack : public testing::Test {
 protected:
  std::filesystem::path path_of(std::span<const std::byte> bytes) {
    const auto path = folder_ / "test.pack";
    std::filesystem::remove(path);  // some file systems flush one that is overwritten
    test::write_text(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    return path;
  }
  /// Reads everything that the pack has.
  void read_all(std::span<const std::byte> bytes) {
    const KernelPack pack = KernelPack::open(path_of(bytes));
    for (const PackedKernel& kernel : pack.kernels()) (void)pack.cubin(kernel);
  }
  void expect_corrupt(std::span<const std::byte> bytes, const std::string& reason) {
    expect_error(ErrorCode::corrupt_file, (folder_ / "test.pack").string(), reason,
                 [&] { read_all(bytes); });
  }

  ScratchFolder folder_;
};

TEST_F(Pack, ReadsWhatWasWritten) {
  const auto kernels = three_kernels();
  write_pack(folder_ / "k.pack", kernels);
  const KernelPack pack = KernelPack::open(folder_ / "k.pack");
  ASSERT_EQ(pack.kernels().size(), 3u);
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const PackedKernel& read = pack.kernels()[i];
    EXPECT_EQ(read.name, kernels[i].name);
    EXPECT_EQ(read.architecture, "sm_90a");
    EXPECT_EQ(read.compiler, kernels[i].compiler);
    EXPECT_EQ(read.flags, kernels[i].flags);
    EXPECT_EQ(read.source, kernels[i].source);
    EXPECT_EQ(read.resources, kernels[i].resources);
    const auto code = pack.cubin(read);
    EXPECT_EQ(std::vector(code.begin(), code.end()), kernels[i].cubin);
    EXPECT_EQ(read.cubin_offset % 64, 0u);
    EXPECT_EQ(pack.find(read.name), &read);
  }
  EXPECT_EQ(pack.find("fourth"), nullptr);
  EXPECT_THAT(folder_.names(), ::testing::ElementsAre("k.pack"));  // no temporary file stays
}

TEST_F(Pack, MayBeEmpty) {
  const KernelPack pack = KernelPack::open(path_of(pack_bytes({})));
  EXPECT_TRUE(pack.kernels().empty());
}

TEST_F(Pack, IsTheSameForTheSameKernels) {
  EXPECT_EQ(pack_bytes(three_kernels()), pack_bytes(three_kernels()));
}

TEST_F(Pack, EveryTruncationIsRefused) {
  const auto bytes = pack_bytes(three_kernels());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    expect_corrupt(std::span(bytes).first(size), "this kernel pack");
  }
  auto longer = bytes;
  longer.push_back(std::byte{});
  expect_corrupt(longer, "bytes long and says");
}

TEST_F(Pack, EveryChangedByteIsRefusedOrPadding) {
  const auto kernels = three_kernels();
  const auto bytes = pack_bytes(kernels);
  int accepted = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto changed = bytes;
    changed[i] ^= std::byte{0x10};
    try {
      read_all(changed);
      EXPECT_EQ(bytes[i], std::byte{}) << i;  // between header, index and code
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_file) << error.what();
    }
  }
  EXPECT_LT(accepted, 4 * 64);
}

/// Makes the index hash right again, so that what is behind it is tested.
void seal(std::vector<std::byte>& bytes) {
  std::uint64_t index_bytes = 0;
  std::memcpy(&index_bytes, bytes.data() + 16, sizeof index_bytes);
  if (index_bytes > bytes.size() - kIndexOffset) return;
  const auto text = [&](std::size_t begin, std::size_t size) {
    return std::string_view(reinterpret_cast<const char*>(bytes.data()) + begin, size);
  };
  const Hash128 hash = Hasher()
                           .add(text(0, kHashOffset))
                           .add(text(kIndexOffset, static_cast<std::size_t>(index_bytes)))
                           .finish();
  std::memcpy(bytes.data() + kHashOffset, &hash.high, 8);
  std::memcpy(bytes.data() + kHashOffset + 8, &hash.low, 8);
}

TEST_F(Pack, LiesInASealedIndexAreRefused) {
  const auto bytes = pack_bytes(three_kernels());
  const auto with = [&](std::size_t offset, auto value) {
    auto changed = bytes;
    std::memcpy(changed.data() + offset, &value, sizeof value);
    seal(changed);
    return changed;
  };
  expect_corrupt(with(8, std::uint32_t{2}), "has version 2");
  expect_corrupt(with(12, std::uint32_t{1u << 17}), "claims 131072 kernels");
  expect_corrupt(with(12, std::uint32_t{2}), "bytes after the last kernel");
  expect_corrupt(with(12, std::uint32_t{4}), "ends within its index");
  expect_corrupt(with(16, std::uint64_t{~0ull}), "an index beyond its end");
  expect_corrupt(with(24, std::uint64_t{7}), "bytes long and says 7");
  expect_corrupt(with(kIndexOffset, std::uint32_t{5000}), "a text of 5000 bytes");
  expect_corrupt(with(kIndexOffset, std::uint32_t{0xffffffff}), "a text of 4294967295 bytes");
  // Offset and length of the first kernel's code, after its four texts, hash and resources.
  const CompiledKernel first = three_kernels()[0];
  const std::size_t code = kIndexOffset + 4 * 4 + first.name.size() + first.architecture.size() +
                           first.compiler.size() + first.flags.size() + 16 + 4 * 4;
  for (const std::uint64_t offset : {0ull, 64ull, 1ull, ~0ull, ~63ull, 1ull << 62}) {
    expect_corrupt(with(code, offset), "the code of first lies outside it");
  }
  for (const std::uint64_t size : {0ull, 100'000ull, ~0ull, ~0ull - 63}) {
    expect_corrupt(with(code + 8, size), "the code of first lies outside it");
  }
  auto twice = three_kernels();
  twice[1].name = "first";
  expect_corrupt(pack_bytes(twice), "two kernels called first");
  twice[1].name = "";
  expect_corrupt(pack_bytes(twice), "a kernel without a name");
}

/// Random changes behind a right hash: never anything but corrupt_file, or a pack that is sound.
TEST_F(Pack, RandomSealedChangesNeverEscape) {
  const auto bytes = pack_bytes(three_kernels());
  std::mt19937 random(1);
  const auto below = [&](std::size_t limit) { return random() % limit; };
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    auto changed = bytes;
    const std::size_t edits = 1 + below(4);
    for (std::size_t i = 0; i < edits; ++i) {
      changed[8 + below(changed.size() - 8)] = static_cast<std::byte>(random() >> 8);
    }
    if (below(4) == 0) changed.resize(kIndexOffset + below(changed.size() - kIndexOffset));
    seal(changed);
    try {
      read_all(changed);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::corrupt_file) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 500);
}

TEST_F(Pack, IsFoundWhereTheVariableSays) {
  write_pack(folder_ / "blockscale-sm_90a.pack", three_kernels());
  setenv("BLOCKSCALE_KERNELS", folder_.path().c_str(), 1);
  EXPECT_EQ(find_pack("sm_90a"), folder_ / "blockscale-sm_90a.pack");
  expect_error(ErrorCode::not_found, "BLOCKSCALE_KERNELS", "there is no kernel pack at",
               [] { find_pack("sm_100f"); });
  setenv("BLOCKSCALE_KERNELS", (folder_ / "blockscale-sm_90a.pack").c_str(), 1);
  EXPECT_EQ(find_pack("sm_90a"), folder_ / "blockscale-sm_90a.pack");
  setenv("BLOCKSCALE_KERNELS", "/none", 1);
  expect_error(ErrorCode::not_found, "BLOCKSCALE_KERNELS", "there is no kernel pack at /none",
               [] { find_pack("sm_90a"); });
  unsetenv("BLOCKSCALE_KERNELS");
  EXPECT_EQ(find_pack("sm_1"), "");
}

TEST_F(Pack, ThatCannotBeOpenedSaysSo) {
  expect_error(ErrorCode::not_found, "/none/x.pack", "No such file",
               [] { KernelPack::open("/none/x.pack"); });
  expect_error(ErrorCode::io, folder_.path().string(), "not a regular file",
               [&] { KernelPack::open(folder_.path()); });
  expect_error(ErrorCode::not_found, "/none/x.pack", "cannot create a file",
               [] { write_pack("/none/x.pack", {}); });
}

}  // namespace
}  // namespace blockscale::runtime
