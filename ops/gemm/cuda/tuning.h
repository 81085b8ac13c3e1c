// Launch configs that were measured to be faster than the plan's own, kept in a user's file that
// plans honour.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ops/gemm/cuda/sm90/fp8_model.h"

namespace blockscale::gemm_detail {

/// Products that are tuned as one: m is rounded up to a power of two.
Fp8GemmSize tuning_class(Fp8GemmSize size);

struct TunedChoice {
  cuda::Chip chip;   // of which its name and multiprocessors count
  Fp8GemmSize size;  // a tuning_class
  Fp8LaunchConfig choice;
  double seconds = 0;
  double planned_seconds = 0;  // by the choice of the model
};

/// The contents of a file. It is of the kernels that this library has: what was measured with
/// others' sources does not count, and goes when it is written again.
class Tuning {
 public:
  static constexpr std::size_t kMostChoices = 4096;
  static constexpr std::size_t kMostBytes = 4 << 20;

  /// Nothing if there is no such file, or no path. What the file holds is not trusted: throws
  /// corrupt_file, naming it and what is wrong; io.
  static Tuning read(const std::filesystem::path& path);

  /// BLOCKSCALE_TUNING, else gemm-tuning.json where compiled kernels are cached, else nowhere.
  static std::filesystem::path user_file();

  /// That file as it was at the first call. If it cannot be read, a warning says why, and nothing
  /// is tuned.
  static const Tuning& of_user();

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TunedChoice>& choices() const { return choices_; }

  /// The choice for a product, if there is one that can compute it.
  std::optional<Fp8LaunchConfig> find(const cuda::Chip& chip, const Fp8GemmSize& size) const;

  /// Replaces what is known of the choice's chip and class, or forgets it. Of too many choices the
  /// oldest goes.
  void set(TunedChoice choice);
  void forget(const cuda::Chip& chip, const Fp8GemmSize& tuning_class);

  /// Writes the file whole or not at all, and its folder if that is missing. Throws io, and
  /// invalid_argument if there is no path.
  void write() const;

 private:
  std::filesystem::path path_;
  std::vector<TunedChoice> choices_;
};

/// Seconds that a product takes, the first by the model's plan, the others by `choices`.
using TimeChoices = std::function<std::vector<double>(const std::vector<Fp8LaunchConfig>& choices)>;

struct TuningResult {
  std::size_t tried = 0;
  double planned_seconds = 0;
  double best_seconds = 0;              // of the choices
  std::optional<Fp8LaunchConfig> kept;  // the best one, if it is worth it
};

/// Times all choices of a product, and sets or forgets what `tuning` has of it.
TuningResult tune(const cuda::Chip& chip, const Fp8GemmSize& size, const TimeChoices& time_choices,
                  Tuning& tuning);

std::string text_of(const Fp8LaunchConfig& choice);

}  // namespace blockscale::gemm_detail
