// A file of compiled kernels with an index: the kernel pack, and each entry of the cache.
//
// Layout, little-endian. A header of 64 bytes: the magic "blksckpk", version (u32), number of
// kernels (u32), bytes of the index (u64), bytes of the file (u64), XXH3-128 of those 32 bytes and
// the index (16 bytes), zeros. Then the index, one entry a kernel: name, architecture, compiler and
// flags (each a u32 length and its bytes), source hash (16 bytes), registers, spill bytes, stack
// bytes and static shared bytes (u32 each), offset and bytes of its cubin (u64 each) and the
// cubin's XXH3-128. Then the cubins, each at a multiple of 64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blockscale/files.h"
#include "runtime/hash.h"
#include "runtime/kernels/kernel_compiler.h"

namespace blockscale::runtime {

/// One entry of an index.
struct PackedKernel {
  std::string name;
  std::string architecture;
  std::string compiler;
  std::string flags;
  Hash128 source;
  KernelResources resources;
  std::uint64_t cubin_offset = 0;
  std::uint64_t cubin_bytes = 0;
  Hash128 cubin_hash;
};

/// An open pack: mapped, its index read and checked. What is in a file is not trusted: every
/// number is checked before it is used.
class KernelPack {
 public:
  /// Throws not_found, io, or corrupt_file naming the file and the rule that it breaks.
  static KernelPack open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<PackedKernel>& kernels() const { return kernels_; }
  /// Null if there is none of this name.
  const PackedKernel* find(std::string_view name) const;
  /// Valid while the pack is. Throws corrupt_file if the bytes are not those that were written.
  std::span<const std::byte> cubin(const PackedKernel& kernel) const;

 private:
  explicit KernelPack(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
  std::vector<PackedKernel> kernels_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

/// The bytes of a pack with these kernels, in this order.
std::vector<std::byte> pack_bytes(std::span<const CompiledKernel> kernels);

/// Writes them to `path`, whole or not at all. Throws io.
void write_pack(const std::filesystem::path& path, std::span<const CompiledKernel> kernels);

/// "blockscale-sm_90a.pack".
std::string pack_file_name(const std::string& architecture);

/// Where the pack of an architecture lies: BLOCKSCALE_KERNELS (a folder, or the file itself) if it
/// is set, and must then hold it; else the first that exists of the folder of the program or
/// library that this code is in, the one above it, and lib/blockscale beside it. Empty if there is
/// none. Throws not_found for what BLOCKSCALE_KERNELS names.
std::filesystem::path find_pack(const std::string& architecture);

}  // namespace blockscale::runtime
