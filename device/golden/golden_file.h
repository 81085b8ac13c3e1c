// The file of golden results: named lists of 64-bit hashes or of 32-bit words. Host code for both
// the program that writes it on a GPU and the test that reads it.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/golden/operations.h"

namespace blockscale::golden {

/// visit(static_cast<Type*>(nullptr)) for each type of the list.
template <class... Types, class Visit>
void for_each(TypeList<Types...>, const Visit& visit) {
  (visit(static_cast<Types*>(nullptr)), ...);
}

/// By name: "unary/rcp_rn", "random/fma_rn", "program/shfl_sync", "tensor/load_3d".
struct GoldenFile {
  std::string device;  // that made it, and with what
  std::map<std::string, std::vector<uint64_t>> hashes;
  std::map<std::string, std::vector<uint32_t>> words;
  std::map<std::string, std::string> refused;  // tensor maps that the driver does not encode
};

namespace detail {

inline constexpr char kMagic[] = "blockscale golden 1\n";

inline void put(std::ostream& out, const void* data, std::size_t bytes) {
  out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}
inline void put_count(std::ostream& out, std::size_t count) {
  const auto value = static_cast<uint32_t>(count);
  put(out, &value, sizeof(value));
}
inline void put_text(std::ostream& out, const std::string& text) {
  put_count(out, text.size());
  put(out, text.data(), text.size());
}

inline void get(std::istream& in, void* data, std::size_t bytes) {
  in.read(static_cast<char*>(data), static_cast<std::streamsize>(bytes));
  if (!in) throw std::runtime_error("golden file: it ends too early");
}
inline uint32_t get_count(std::istream& in) {
  uint32_t value = 0;
  get(in, &value, sizeof(value));
  if (value > 1 << 20) throw std::runtime_error("golden file: a count is not credible");
  return value;
}
inline std::string get_text(std::istream& in) {
  std::string text(get_count(in), '\0');
  get(in, text.data(), text.size());
  return text;
}

template <class T>
void put_lists(std::ostream& out, const std::map<std::string, std::vector<T>>& lists) {
  put_count(out, lists.size());
  for (const auto& [name, list] : lists) {
    put_text(out, name);
    put_count(out, list.size());
    put(out, list.data(), list.size() * sizeof(T));
  }
}
template <class T>
void get_lists(std::istream& in, std::map<std::string, std::vector<T>>& lists) {
  for (uint32_t count = get_count(in); count != 0; --count) {
    std::vector<T>& list = lists[get_text(in)];
    list.resize(get_count(in));
    get(in, list.data(), list.size() * sizeof(T));
  }
}

}  // namespace detail

inline void write_golden(const std::string& path, const GoldenFile& file) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  detail::put(out, detail::kMagic, sizeof(detail::kMagic) - 1);
  detail::put_text(out, file.device);
  detail::put_lists(out, file.hashes);
  detail::put_lists(out, file.words);
  detail::put_count(out, file.refused.size());
  for (const auto& [name, text] : file.refused) {
    detail::put_text(out, name);
    detail::put_text(out, text);
  }
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path);
}

inline GoldenFile read_golden(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string magic(sizeof(detail::kMagic) - 1, '\0');
  detail::get(in, magic.data(), magic.size());
  if (magic != detail::kMagic) throw std::runtime_error(path + " is no golden file");
  GoldenFile file;
  file.device = detail::get_text(in);
  detail::get_lists(in, file.hashes);
  detail::get_lists(in, file.words);
  for (uint32_t count = detail::get_count(in); count != 0; --count) {
    const std::string name = detail::get_text(in);
    file.refused[name] = detail::get_text(in);
  }
  return file;
}

}  // namespace blockscale::golden
