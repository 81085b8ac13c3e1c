#include "models/safetensors/file_set.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>

#include "blockscale/error.h"
#include "models/text.h"

namespace blockscale {
namespace {

constexpr std::string_view kSuffix = ".safetensors";
/// What transformers, then diffusers, look for first.
constexpr std::array<std::string_view, 2> kStems = {"model", "diffusion_pytorch_model"};
constexpr std::size_t kNamedInMessages = 8;
constexpr std::size_t kMessageBytes = 400;
constexpr std::size_t kMaxDigits = 9;

/// A set of files by what their names share: HEAD 00001 MIDDLE TAIL, where MIDDLE is "-of-00003".
struct SetName {
  std::size_t rank;  // in kStems; their number for other stems
  std::string head, middle, tail;
  std::size_t digits;

  auto key() const { return std::tie(rank, head, middle, tail, digits); }
  bool operator<(const SetName& other) const { return key() < other.key(); }
  std::string file(std::uint64_t number) const {
    std::string text = std::to_string(number);
    text.insert(0, digits - std::min(digits, text.size()), '0');
    return head + text + middle + tail;
  }
  std::string any() const { return head + "*" + middle + tail; }
};

struct NumberedFile {
  SetName set;
  std::uint64_t number, count;
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// diffusers writes variants as model.fp16-00001-of-00002 and model-00001-of-00002.fp16.
std::optional<NumberedFile> numbered(const std::string& name) {
  constexpr std::string_view kOf = "-of-";
  const std::size_t of = name.rfind(kOf);
  if (of == std::string::npos) return std::nullopt;
  std::size_t first = of, last = of + kOf.size();
  while (first > 0 && is_digit(name[first - 1])) --first;
  while (last < name.size() && is_digit(name[last])) ++last;
  const std::size_t digits = of - first, count_digits = last - of - kOf.size();
  const bool separated = first >= 2 && (name[first - 1] == '-' || name[first - 1] == '_');
  if (digits == 0 || digits > kMaxDigits || count_digits == 0 || count_digits > kMaxDigits ||
      !separated || last >= name.size() || name[last] != '.') {
    return std::nullopt;
  }
  NumberedFile file;
  file.number = std::stoull(name.substr(first, digits));
  file.count = std::stoull(name.substr(of + kOf.size(), count_digits));
  if (file.count == 0 || file.number > file.count) return std::nullopt;
  file.set = {kStems.size(), name.substr(0, first), name.substr(of, last - of), name.substr(last),
              digits};
  const std::string stem = name.substr(0, first - 1);
  for (std::size_t i = 0; i < kStems.size(); ++i) {
    if (stem == kStems[i] && file.set.tail == kSuffix) file.set.rank = i;
  }
  return file;
}

/// `texts` in quotes, the first few of `count`.
std::string list_text(const std::vector<std::string>& texts, std::uint64_t count) {
  std::string text;
  std::size_t shown = 0;
  for (; shown < std::min(texts.size(), kNamedInMessages); ++shown) {
    const std::string name = quote(texts[shown], 80);
    if (shown > 0 && text.size() + name.size() > kMessageBytes) break;
    text += (shown == 0 ? "" : ", ") + name;
  }
  if (count > shown) text += " and " + std::to_string(count - shown) + " more";
  return text;
}

using Numbers = std::map<std::uint64_t, std::string>;  // number -> file

/// The number of the first file of a set of `count`, of which some are there.
std::uint64_t first_number(const Numbers& files) {
  return files.begin()->first == 0 ? 0 : 1;
}

bool is_complete(const Numbers& files, std::uint64_t count) {
  return files.size() == count && files.rbegin()->first == first_number(files) + count - 1;
}

[[noreturn]] void refuse_incomplete(const SetName& set, const Numbers& files, std::uint64_t count,
                                    const std::string& folder) {
  const std::uint64_t first = first_number(files);
  std::vector<std::string> missing;
  for (std::uint64_t n = first; n < first + count && missing.size() < kNamedInMessages; ++n) {
    if (!files.contains(n)) missing.push_back(set.file(n));
  }
  const std::uint64_t there =
      static_cast<std::uint64_t>(std::distance(files.begin(), files.lower_bound(first + count)));
  throw Error(ErrorCode::not_found, folder,
              "holds an incomplete checkpoint: of " + quote(set.any(), 80) + " " +
                  list_text(missing, count - there) +
                  (count - there == 1 ? " is missing" : " are missing"));
}

}  // namespace

std::vector<std::string> choose_files(const std::vector<std::string>& names,
                                      const std::string& folder) {
  for (const std::string_view stem : kStems) {
    const std::string wanted = std::string(stem) + std::string(kSuffix);
    if (std::find(names.begin(), names.end(), wanted) != names.end()) return {wanted};
  }
  struct Set {
    std::uint64_t count;
    Numbers files;
  };
  std::map<SetName, Set> sets;
  for (const std::string& name : names) {
    if (const auto file = numbered(name)) {
      Set& set = sets.try_emplace(file->set, Set{file->count, {}}).first->second;
      set.files.emplace(file->number, name);
    }
  }
  // The best stem alone: a set of it that lacks a file is no reason to read another one.
  std::vector<std::string> complete;
  const Set* chosen = nullptr;
  for (const auto& [name, set] : sets) {
    if (name.rank != sets.begin()->first.rank) break;
    if (!is_complete(set.files, set.count)) continue;
    complete.push_back(name.any());
    chosen = &set;
  }
  const std::string which = ", and neither an index nor a name says which is the checkpoint: ";
  if (complete.size() > 1) {
    throw Error(ErrorCode::invalid_argument, folder,
                "holds " + std::to_string(complete.size()) + " sets of safetensors files" + which +
                    list_text(complete, complete.size()) + "; keep one in the folder");
  }
  if (chosen != nullptr) {
    std::vector<std::string> files;
    for (const auto& [number, file] : chosen->files) files.push_back(file);
    return files;
  }
  if (!sets.empty()) {
    const auto& [name, set] = *sets.begin();
    refuse_incomplete(name, set.files, set.count, folder);
  }
  if (names.empty()) {
    throw Error(ErrorCode::not_found, folder, "the folder holds no *.safetensors file");
  }
  if (names.size() == 1) return names;
  throw Error(ErrorCode::invalid_argument, folder,
              "holds " + std::to_string(names.size()) + " safetensors files" + which +
                  list_text(names, names.size()) + "; name one of them");
}

}  // namespace blockscale
