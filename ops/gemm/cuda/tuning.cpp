#include "ops/gemm/cuda/tuning.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "blockscale/error.h"
#include "blockscale/files.h"
#include "ops/gemm/cuda/specs.h"
#include "runtime/cuda/dynamic_library.h"
#include "runtime/kernels/kernel_cache.h"
#include "runtime/kernels/kernel_sources.h"
#include "runtime/log.h"

namespace blockscale::gemm_detail {
namespace {

using Json = nlohmann::json;

/// A choice is worth keeping if it takes no more than this of the model's: times vary by as much.
constexpr double kWorthKeeping = 0.97;

constexpr const char* kPromotionNames[] = {"blocks", "columns"};

/// Of the sources of all kernels: they differ in their template arguments only.
const std::string& kernel_sources() {
  static const std::string hash = runtime::hexadecimal(
      source_hash(fp8_gemm_kernel_specs().front(), runtime::embedded_sources()));
  return hash;
}

/// Values of one object of the file, each checked.
class Reader {
 public:
  Reader(const std::filesystem::path& path, std::string where, const Json& object)
      : path_(path), where_(std::move(where)), object_(object) {
    if (!object.is_object()) fail("is no object");
  }

  Reader object(const char* name) const { return {path_, where_ + "." + name, value(name)}; }
  std::string text(const char* name) const {
    if (!value(name).is_string()) fail_at(name, "is no text");
    return value(name).get<std::string>();
  }
  bool boolean(const char* name) const {
    if (!value(name).is_boolean()) fail_at(name, "is neither true nor false");
    return value(name).get<bool>();
  }
  template <class T>
  T integer(const char* name, std::int64_t low, std::int64_t high) const {
    const Json& x = value(name);
    if (!x.is_number_integer() || x.get<double>() < static_cast<double>(low) ||
        x.get<double>() > static_cast<double>(high)) {
      fail_at(name,
              "must be an integer from " + std::to_string(low) + " to " + std::to_string(high));
    }
    return static_cast<T>(x.get<std::int64_t>());
  }
  double seconds(const char* name) const {
    const double x = value(name).is_number() ? value(name).get<double>() : 0;
    if (!(x > 0 && x < 1e9)) fail_at(name, "must be a positive number");
    return x;
  }
  Promotion promotion(const char* name) const {
    const std::string word = text(name);
    for (int i = 0; i < 2; ++i) {
      if (word == kPromotionNames[i]) return static_cast<Promotion>(i);
    }
    fail_at(name, "must be blocks or columns");
  }

 private:
  const Json& value(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) fail_at(name, "is missing");
    return *found;
  }
  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorCode::corrupt_file, path_.string(), where_ + " " + message);
  }
  [[noreturn]] void fail_at(const char* name, const std::string& message) const {
    throw Error(ErrorCode::corrupt_file, path_.string(), where_ + "." + name + " " + message);
  }

  const std::filesystem::path& path_;
  std::string where_;
  const Json& object_;
};

TunedChoice choice_of(const Reader& x) {
  constexpr std::int64_t kMostElements = (std::int64_t{1} << 31) - 1;
  TunedChoice t;
  t.chip.name = x.text("chip");
  t.chip.multiprocessors = x.integer<int>("multiprocessors", 1, 1 << 16);
  t.size.m = x.integer<std::int64_t>("m", 1, kMostElements + 1);
  t.size.n = x.integer<std::int64_t>("n", 1, kMostElements);
  t.size.k = x.integer<std::int64_t>("k", 0, kMostElements);
  t.size.batch = x.integer<std::int64_t>("batch", 1, kMostElements);
  t.size.promotion = x.promotion("promotion");
  t.size.may_split = x.boolean("may_split");
  t.size.loads_scales = x.boolean("loads_scales");
  t.size.may_copy_scales = x.boolean("may_copy_scales");
  const Reader c = x.object("choice");
  t.choice.rows = c.integer<int>("rows", 1, 1024);
  t.choice.columns = c.integer<int>("columns", 1, 1024);
  t.choice.stages = c.integer<std::uint32_t>("stages", 1, 64);
  t.choice.split = c.integer<std::uint32_t>("split", 1, 16);
  t.choice.per_sm = c.integer<std::uint32_t>("per_sm", 1, 32);
  t.seconds = x.seconds("seconds");
  t.planned_seconds = x.seconds("planned_seconds");
  return t;
}

/// Bindings name every member, so that a new one does not compile until the file has it. Products
/// that quantize are not tuned.
Json json_of(const TunedChoice& t) {
  const auto& [m, n, k, batch, promotion, may_split_columns, may_split, loads_scales,
               may_copy_scales, quantized_columns] = t.size;
  const auto& [rows, columns, stages, split, per_sm] = t.choice;
  return {{"chip", t.chip.name},
          {"multiprocessors", t.chip.multiprocessors},
          {"m", m},
          {"n", n},
          {"k", k},
          {"batch", batch},
          {"promotion", kPromotionNames[static_cast<int>(promotion)]},
          {"may_split", may_split},
          {"loads_scales", loads_scales},
          {"may_copy_scales", may_copy_scales},
          {"choice",
           {{"rows", rows},
            {"columns", columns},
            {"stages", stages},
            {"split", split},
            {"per_sm", per_sm}}},
          {"seconds", t.seconds},
          {"planned_seconds", t.planned_seconds}};
}

/// A file's text; nothing if there is none.
std::optional<std::string> text_at(const std::filesystem::path& path) {
  try {
    const MappedFile file = MappedFile::open(path);
    if (file.bytes().size() > Tuning::kMostBytes) {
      throw Error(ErrorCode::corrupt_file, path.string(),
                  "has " + std::to_string(file.bytes().size()) + " bytes; at most " +
                      std::to_string(Tuning::kMostBytes) + " are allowed");
    }
    return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    return std::nullopt;
  }
}

bool is_of(const TunedChoice& t, const cuda::Chip& chip, const Fp8GemmSize& size) {
  return t.chip.name == chip.name && t.chip.multiprocessors == chip.multiprocessors &&
         t.size == size;
}

}  // namespace

Fp8GemmSize tuning_class(Fp8GemmSize size) {
  size.m = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(size.m)));
  size.may_split_columns = true;  // choices do not depend on it
  return size;
}

Tuning Tuning::read(const std::filesystem::path& path) {
  Tuning tuning;
  tuning.path_ = path;
  const std::optional<std::string> text = path.empty() ? std::nullopt : text_at(path);
  if (!text) return tuning;
  const Json json = Json::parse(*text, nullptr, false);
  if (json.is_discarded()) throw Error(ErrorCode::corrupt_file, path.string(), "is no JSON");
  if (Reader(path, "the file", json).text("kernels") != kernel_sources()) return tuning;
  const auto choices = json.find("choices");
  if (choices == json.end() || !choices->is_array() || choices->size() > kMostChoices) {
    throw Error(ErrorCode::corrupt_file, path.string(),
                "choices must be an array of at most " + std::to_string(kMostChoices));
  }
  for (std::size_t i = 0; i < choices->size(); ++i) {
    tuning.choices_.push_back(
        choice_of(Reader(path, "choices[" + std::to_string(i) + "]", (*choices)[i])));
  }
  return tuning;
}

std::filesystem::path Tuning::user_file() {
  if (const std::string named = runtime::environment("BLOCKSCALE_TUNING"); !named.empty())
    return named;
  const std::filesystem::path folder = runtime::KernelCache::of_user().folder();
  return folder.empty() ? folder : folder / "gemm-tuning.json";
}

const Tuning& Tuning::of_user() {
  static const Tuning* const tuning = [] {
    try {
      return new Tuning(read(user_file()));
    } catch (const Error& error) {
      runtime::log()->warn("products are not tuned: {}", error.what());
      return new Tuning();
    }
  }();
  return *tuning;
}

std::optional<Fp8LaunchConfig> Tuning::find(const cuda::Chip& chip, const Fp8GemmSize& size) const {
  if (choices_.empty() || size.m < 1) return std::nullopt;
  const Fp8GemmSize wanted = tuning_class(size);
  for (const TunedChoice& t : choices_) {
    if (!is_of(t, chip, wanted)) continue;
    const std::vector<Fp8LaunchConfig> able = fp8_launch_configs(size, chip);
    if (std::find(able.begin(), able.end(), t.choice) == able.end()) return std::nullopt;
    return t.choice;
  }
  return std::nullopt;
}

void Tuning::set(TunedChoice choice) {
  forget(choice.chip, choice.size);
  if (choices_.size() == kMostChoices) choices_.erase(choices_.begin());
  choices_.push_back(std::move(choice));
}

void Tuning::forget(const cuda::Chip& chip, const Fp8GemmSize& tuning_class) {
  std::erase_if(choices_, [&](const TunedChoice& t) { return is_of(t, chip, tuning_class); });
}

void Tuning::write() const {
  if (path_.empty()) {
    throw Error(ErrorCode::invalid_argument, "BLOCKSCALE_TUNING",
                "is not set, and there is no home folder to keep what was tuned in");
  }
  std::error_code error;
  if (path_.has_parent_path()) std::filesystem::create_directories(path_.parent_path(), error);
  if (error) throw_io(path_.parent_path(), "make this folder", error.value());
  Json choices = Json::array();
  for (const TunedChoice& t : choices_) choices.push_back(json_of(t));
  const Json json = {{"kernels", kernel_sources()}, {"choices", choices}};
  write_file_atomically(path_, json.dump(1) + "\n");
}

TuningResult tune(const cuda::Chip& chip, const Fp8GemmSize& size, const TimeChoices& time_choices,
                  Tuning& tuning) {
  const std::vector<Fp8LaunchConfig> choices = fp8_launch_configs(size, chip);
  const std::vector<double> seconds = time_choices(choices);
  const auto best = std::min_element(seconds.begin() + 1, seconds.end());
  TuningResult result = {choices.size(), seconds.front(), *best, std::nullopt};
  const Fp8GemmSize of = tuning_class(size);
  if (*best <= kWorthKeeping * seconds.front()) {
    result.kept = choices[static_cast<std::size_t>(best - seconds.begin()) - 1];
    tuning.set({chip, of, *result.kept, *best, seconds.front()});
  } else {
    tuning.forget(chip, of);
  }
  return result;
}

std::string text_of(const Fp8LaunchConfig& c) {
  std::string text = "tiles of " + std::to_string(c.rows) + " x " + std::to_string(c.columns) +
                     ", " + std::to_string(c.stages) + " stages";
  if (c.split > 1) text += ", K divided by " + std::to_string(c.split);
  if (c.per_sm > 1) text += ", " + std::to_string(c.per_sm) + " blocks a multiprocessor";
  return text;
}

}  // namespace blockscale::gemm_detail
