#include "runtime/kernels/kernel_pack.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "blockscale/error.h"

namespace blockscale::runtime {
namespace {

constexpr std::string_view kMagic = "blksckpk";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHashedHeaderBytes = 32;
constexpr std::size_t kHeaderBytes = 64;
constexpr std::size_t kCubinAlignment = 64;
constexpr std::uint32_t kMaxKernels = 1 << 16;
constexpr std::uint32_t kMaxTextBytes = 4096;

std::uint64_t aligned(std::uint64_t offset) {
  return (offset + kCubinAlignment - 1) / kCubinAlignment * kCubinAlignment;
}

/// Appends numbers and texts.
class Writer {
 public:
  template <class Number>
  void number(Number value) {
    for (std::size_t i = 0; i < sizeof value; ++i) {
      bytes_.push_back(static_cast<std::byte>(value >> (8 * i) & 255));
    }
  }
  void raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void raw(std::string_view text) { raw(std::as_bytes(std::span(text))); }
  void text(std::string_view text) {
    number(static_cast<std::uint32_t>(text.size()));
    raw(text);
  }
  void hash(const Hash128& hash) {
    number(hash.high);
    number(hash.low);
  }
  void pad_to(std::size_t bytes) { bytes_.resize(bytes); }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads them back; past the end of its bytes it throws corrupt_file.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::string path)
      : bytes_(bytes), path_(std::move(path)) {}

  template <class Number>
  Number number() {
    const auto bytes = raw(sizeof(Number));
    Number value = 0;
    for (std::size_t i = 0; i < sizeof value; ++i) {
      value |= static_cast<Number>(std::to_integer<Number>(bytes[i]) << (8 * i));
    }
    return value;
  }
  std::string text() {
    const auto size = number<std::uint32_t>();
    if (size > kMaxTextBytes) fail("has a text of " + std::to_string(size) + " bytes");
    const auto bytes = raw(size);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  Hash128 hash() {
    const auto high = number<std::uint64_t>();
    return {high, number<std::uint64_t>()};
  }
  std::span<const std::byte> raw(std::size_t size) {
    if (size > bytes_.size() - at_) fail("ends within its index");
    at_ += size;
    return bytes_.subspan(at_ - size, size);
  }
  bool at_end() const { return at_ == bytes_.size(); }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::corrupt_file, path_, "this kernel pack " + what);
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  std::string path_;
};

struct Header {
  std::uint32_t kernels = 0;
  std::span<const std::byte> index;
};

Hash128 index_hash(std::span<const std::byte> header, std::span<const std::byte> index) {
  const auto text = [](std::span<const std::byte> bytes) {
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  return Hasher().add(text(header.first(kHashedHeaderBytes))).add(text(index)).finish();
}

/// Checks everything about the file but the entries of its index.
Header read_header(std::span<const std::byte> file, const std::string& path) {
  Reader reader(file.first(std::min(file.size(), kHeaderBytes)), path);
  if (file.size() < kHeaderBytes) reader.fail("is cut off within its header");
  if (std::memcmp(reader.raw(kMagic.size()).data(), kMagic.data(), kMagic.size()) != 0) {
    reader.fail("does not begin as one");
  }
  if (const auto version = reader.number<std::uint32_t>(); version != kVersion) {
    reader.fail("has version " + std::to_string(version) + "; this library reads " +
                std::to_string(kVersion));
  }
  Header header;
  header.kernels = reader.number<std::uint32_t>();
  const auto index_bytes = reader.number<std::uint64_t>();
  const auto file_bytes = reader.number<std::uint64_t>();
  if (header.kernels > kMaxKernels) {
    reader.fail("claims " + std::to_string(header.kernels) + " kernels");
  }
  if (file_bytes != file.size()) {
    reader.fail("is " + std::to_string(file.size()) + " bytes long and says " +
                std::to_string(file_bytes));
  }
  if (index_bytes > file.size() - kHeaderBytes) reader.fail("has an index beyond its end");
  header.index = file.subspan(kHeaderBytes, static_cast<std::size_t>(index_bytes));
  if (reader.hash() != index_hash(file, header.index)) reader.fail("has a damaged index");
  return header;
}

PackedKernel read_entry(Reader& reader, std::uint64_t first_cubin, std::uint64_t file_bytes) {
  PackedKernel kernel;
  kernel.name = reader.text();
  kernel.architecture = reader.text();
  kernel.compiler = reader.text();
  kernel.flags = reader.text();
  kernel.source = reader.hash();
  kernel.resources.registers = reader.number<std::uint32_t>();
  kernel.resources.spill_bytes = reader.number<std::uint32_t>();
  kernel.resources.stack_bytes = reader.number<std::uint32_t>();
  kernel.resources.static_shared_bytes = reader.number<std::uint32_t>();
  kernel.cubin_offset = reader.number<std::uint64_t>();
  kernel.cubin_bytes = reader.number<std::uint64_t>();
  kernel.cubin_hash = reader.hash();
  if (kernel.name.empty()) reader.fail("has a kernel without a name");
  if (kernel.cubin_offset % kCubinAlignment != 0 || kernel.cubin_offset < first_cubin ||
      kernel.cubin_offset > file_bytes || kernel.cubin_bytes == 0 ||
      kernel.cubin_bytes > file_bytes - kernel.cubin_offset) {
    reader.fail("says that the code of " + kernel.name + " lies outside it");
  }
  return kernel;
}

void write_entry(Writer& index, const CompiledKernel& kernel, std::uint64_t offset) {
  index.text(kernel.name);
  index.text(kernel.architecture);
  index.text(kernel.compiler);
  index.text(kernel.flags);
  index.hash(kernel.source);
  index.number(kernel.resources.registers);
  index.number(kernel.resources.spill_bytes);
  index.number(kernel.resources.stack_bytes);
  index.number(kernel.resources.static_shared_bytes);
  index.number(offset);
  index.number(std::uint64_t{kernel.cubin.size()});
  index.hash(hash_bytes(kernel.cubin));
}

/// The index of `kernels` if the first cubin lies at `offset`; its length does not depend on that.
std::vector<std::byte> index_of(std::span<const CompiledKernel> kernels, std::uint64_t offset) {
  Writer index;
  for (const CompiledKernel& kernel : kernels) {
    write_entry(index, kernel, offset);
    offset = aligned(offset + kernel.cubin.size());
  }
  return std::move(index.bytes());
}

}  // namespace

KernelPack KernelPack::open(const std::filesystem::path& path) {
  KernelPack pack(MappedFile::open(path));
  pack.file_.check_size();
  const auto bytes = pack.file_.bytes();
  const Header header = read_header(bytes, path.string());
  Reader reader(header.index, path.string());
  const std::uint64_t first_cubin = kHeaderBytes + header.index.size();
  for (std::uint32_t i = 0; i < header.kernels; ++i) {
    pack.kernels_.push_back(read_entry(reader, first_cubin, bytes.size()));
    if (!pack.by_name_.emplace(pack.kernels_.back().name, i).second) {
      reader.fail("has two kernels called " + pack.kernels_.back().name);
    }
  }
  if (!reader.at_end()) reader.fail("has bytes after the last kernel of its index");
  return pack;
}

const PackedKernel* KernelPack::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &kernels_[found->second];
}

std::span<const std::byte> KernelPack::cubin(const PackedKernel& kernel) const {
  file_.check_size();
  const auto code = file_.bytes().subspan(static_cast<std::size_t>(kernel.cubin_offset),
                                          static_cast<std::size_t>(kernel.cubin_bytes));
  if (hash_bytes(code) != kernel.cubin_hash) {
    throw Error(ErrorCode::corrupt_file, path().string(),
                "the code of kernel " + kernel.name + " is damaged");
  }
  return code;
}

std::vector<std::byte> pack_bytes(std::span<const CompiledKernel> kernels) {
  const std::size_t index_bytes = index_of(kernels, 0).size();
  const std::uint64_t first_cubin = aligned(kHeaderBytes + index_bytes);
  std::uint64_t end = first_cubin;
  for (const CompiledKernel& kernel : kernels) end = aligned(end) + kernel.cubin.size();

  Writer file;
  file.raw(kMagic);
  file.number(kVersion);
  file.number(static_cast<std::uint32_t>(kernels.size()));
  file.number(std::uint64_t{index_bytes});
  file.number(kernels.empty() ? std::uint64_t{kHeaderBytes} : end);
  const std::vector<std::byte> index = index_of(kernels, first_cubin);
  file.hash(index_hash(file.bytes(), index));
  file.pad_to(kHeaderBytes);
  file.raw(index);
  for (const CompiledKernel& kernel : kernels) {
    file.pad_to(static_cast<std::size_t>(aligned(file.bytes().size())));
    file.raw(kernel.cubin);
  }
  return std::move(file.bytes());
}

void write_pack(const std::filesystem::path& path, std::span<const CompiledKernel> kernels) {
  const std::vector<std::byte> bytes = pack_bytes(kernels);
  AtomicFile file(path, bytes.size());
  file.write(0, bytes);
  file.publish();
}

std::string pack_file_name(const std::string& architecture) {
  return "blockscale-" + architecture + ".pack";
}

std::filesystem::path find_pack(const std::string& architecture) {
  const std::string name = pack_file_name(architecture);
  std::error_code ignored;
  if (const std::string named = environment("BLOCKSCALE_KERNELS"); !named.empty()) {
    std::filesystem::path path = named;
    if (std::filesystem::is_directory(path, ignored)) path /= name;
    if (std::filesystem::exists(path, ignored)) return path;
    throw Error(ErrorCode::not_found, "BLOCKSCALE_KERNELS",
                "there is no kernel pack at " + path.string());
  }
  const std::filesystem::path folder = own_folder();
  for (const auto& candidate : {folder / name, folder.parent_path() / name,
                                folder.parent_path() / "lib/blockscale" / name}) {
    if (std::filesystem::exists(candidate, ignored)) return candidate;
  }
  return {};
}

}  // namespace blockscale::runtime
