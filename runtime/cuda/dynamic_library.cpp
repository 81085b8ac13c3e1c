#include "runtime/cuda/dynamic_library.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

namespace blockscale::runtime {
namespace {

const link_map* map_of(void* handle) {
  link_map* map = nullptr;
  return handle != nullptr && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? map : nullptr;
}

std::string hexadecimal(const unsigned char* bytes, std::size_t count) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

/// The build id among the notes of one PT_NOTE segment, which are padded to 4 bytes each.
std::string build_id_in(const unsigned char* notes, std::size_t bytes) {
  const auto padded = [](std::size_t size) { return (size + 3) & ~std::size_t{3}; };
  std::size_t at = 0;
  while (bytes - at >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes + at, sizeof note);
    const std::size_t name = at + sizeof note;
    const std::size_t description = name + padded(note.n_namesz);
    const std::size_t end = description + padded(note.n_descsz);
    if (end > bytes) return {};
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
        std::memcmp(notes + name, "GNU", 4) == 0) {
      return hexadecimal(notes + description, note.n_descsz);
    }
    at = end;
  }
  return {};
}

struct BuildIdSearch {
  ElfW(Addr) base;
  std::string result;
};

int search_build_id(dl_phdr_info* info, std::size_t, void* data) {
  auto& search = *static_cast<BuildIdSearch*>(data);
  if (info->dlpi_addr != search.base) return 0;
  for (int i = 0; i < info->dlpi_phnum && search.result.empty(); ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    search.result = build_id_in(
        reinterpret_cast<const unsigned char*>(info->dlpi_addr + segment.p_vaddr), segment.p_memsz);
  }
  return 1;
}

}  // namespace

DynamicLibrary::DynamicLibrary(const std::filesystem::path& name) : name_(name) {
  handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ != nullptr) return;
  const char* const text = dlerror();
  problem_ = text != nullptr ? text : "cannot be opened";
  std::error_code ignored;
  // Of a file that it has found, or of another one that this needs, the loader says where or which.
  missing_ = name.has_parent_path() ? !std::filesystem::exists(name, ignored)
                                    : problem_.starts_with(name.string() + ": ");
}

std::filesystem::path DynamicLibrary::path() const {
  const link_map* const map = map_of(handle_);
  return map != nullptr && map->l_name != nullptr && map->l_name[0] != '\0' ? map->l_name : name_;
}

std::string DynamicLibrary::build_id() const {
  const link_map* const map = map_of(handle_);
  if (map == nullptr) return {};
  BuildIdSearch search{map->l_addr, {}};
  dl_iterate_phdr(&search_build_id, &search);
  return search.result;
}

void* DynamicLibrary::symbol(const char* name) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, name);
}

std::filesystem::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) {
    return {};
  }
  // For the main program the loader gives argv[0], which the shell may have shortened.
  std::error_code error;
  const std::filesystem::path file = info.dli_fname;
  if (file.has_parent_path()) {
    const auto real = std::filesystem::canonical(file, error);
    if (!error) return real.parent_path();
  }
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace blockscale::runtime
