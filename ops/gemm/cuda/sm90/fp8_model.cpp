#include "ops/gemm/cuda/sm90/fp8_model.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "runtime/hash.h"

namespace blockscale::gemm_detail {
namespace {

constexpr std::uint32_t kReservedBytes = 1024;  // of each block, for the system
constexpr std::uint32_t kMultiprocessorBytes = 228 * 1024;

/// Clusters of so many blocks that a Hopper chip holds at a time, one block a multiprocessor:
/// measured; one more waits for another to end.
constexpr std::array<std::uint32_t, 9> kResidentClusters = {0, 132, 66, 39, 30, 22, 17, 15, 15};

// A model of an H200, of few constants, fitted to what all configs took on the shapes of dense
// models (docs/log/gemm-sm90.md says how well).
constexpr double kLaunch = 2.49e-6;    // until the first products, and from the last ones on
constexpr double kMemory = 4.8e12;     // bytes a second
constexpr double kProducts = 8.33e12;  // multiply-adds a second of a multiprocessor
constexpr double kLoads = 93e9;        // bytes of B a second to a multiprocessor
constexpr double kStep = 0.11e-6;      // a k-block
constexpr double kStore = 3.36e-10;    // an element of the last tile
constexpr double kBeside = 0.22;       // of kStore, where the multiprocessor has a next tile
// The same of warpgroups that multiply in ping-pong.
constexpr double kPingPongProducts = 20e12;
constexpr double kPingPongStep = 0.355e-6;
constexpr double kPingPongLoad = 0.02e-6;  // more, where scales are not copied
constexpr double kPingPongStore = 1.5e-10;
constexpr double kPingPongBeside = 0.55;
constexpr double kSum = 0.62e-10;  // an element that a block of a cluster adds
constexpr double kBegin = 2e-6;    // of a block that begins where another has ended

/// A second launch must be worth this much: it is one more kernel to load and to launch, and the
/// model takes a few percent too little for it where the first one has whole waves of 192 rows.
constexpr double kWorthwhile = 0.97;
/// Where D's columns may be split: at most so many multiples of least_columns before its end.
constexpr int kMostColumnSplits = 8;

/// Tiles, or the groups of them that a block takes together.
std::uint32_t tiles_of(const Fp8GemmSize& x, const Fp8LaunchConfig& c) {
  return static_cast<std::uint32_t>(ceil_div(x.m, c.rows) *
                                    ceil_div(x.n, c.columns * x.sub_tiles()) * x.batch);
}

/// Clusters that run at a time on so many multiprocessors.
std::uint32_t resident_clusters(const Fp8LaunchConfig& c, int multiprocessors) {
  const auto sms = static_cast<std::uint32_t>(multiprocessors);
  return kResidentClusters[c.split] * sms / 132 * c.per_sm;
}

std::uint32_t clusters_at_a_time(const Fp8LaunchConfig& c, int multiprocessors) {
  return std::max(1u, resident_clusters(c, multiprocessors));
}

double bytes_of(const Fp8GemmSize& x) {
  const double of_result = x.quantized_columns == 0 ? 2 : 1.0 / double(x.sub_tiles());
  return (double(x.m) * double(x.k) + double(x.n) * double(x.k) +
          double(x.m) * double(x.n) * of_result) *
         double(x.batch);
}

/// A tile, or a group of them, on a multiprocessor that holds so many blocks: the last one, or one
/// whose results are stored beside the next one's products.
double tile_seconds(const Fp8GemmSize& x, const Fp8LaunchConfig& c, double blocks_per_sm,
                    bool is_last) {
  const double elements = double(c.rows) * c.columns;
  const double k_blocks = double(ceil_div(ceil_div(x.k, kFp8BlockK), c.split));
  // A's bytes cost nothing: other blocks read the same at the same time.
  const bool ping_pong = !has_two_accumulators({.rows = c.rows, .columns = c.columns});
  const double block = std::max(elements * kFp8BlockK / (ping_pong ? kPingPongProducts : kProducts),
                                double(c.columns) * kFp8BlockK / kLoads);
  const double step =
      !ping_pong
          ? kStep
          : kPingPongStep + (x.loads_scales && !kernel_of(x, c).copies_scales ? kPingPongLoad : 0);
  double store = elements * (ping_pong ? kPingPongStore : kStore);
  if (!is_last) store *= blocks_per_sm * (ping_pong ? kPingPongBeside : kBeside);
  return double(x.sub_tiles()) * (k_blocks * (block * blocks_per_sm + step) + store);
}

/// What a block of a cluster waits for and adds: the other blocks' sums of its warps' rows.
double sum_seconds(const Fp8LaunchConfig& c) {
  const double rows = 16 * double(ceil_div(std::uint32_t(c.rows) / 16, c.split));
  return (c.split - 1) * rows * c.columns * kSum;
}

/// Tiles run in waves, of which the last, the tail, may leave multiprocessors with fewer blocks, or
/// none.
struct Waves {
  double whole;   // until the last wave begins
  double all;     // until it ends
  int idle_last;  // multiprocessors without a tile in the last wave
};

Waves waves_of(const Fp8GemmSize& x, const Fp8LaunchConfig& c, int multiprocessors) {
  const std::uint32_t resident = clusters_at_a_time(c, multiprocessors);
  const std::uint32_t tiles = tiles_of(x, c);
  Waves w;
  const std::uint32_t whole = (tiles - 1) / resident;
  const std::int64_t blocks = std::int64_t{tiles - whole * resident} * c.split;
  w.whole = whole * tile_seconds(x, c, c.per_sm, false);
  w.all = w.whole + tile_seconds(x, c, double(ceil_div(blocks, multiprocessors)), true);
  w.idle_last = std::max(0, multiprocessors - static_cast<int>(blocks));
  return w;
}

/// When blocks that fill a launch's tail wave have ended: as many as there is room for begin with
/// it, the others behind it or behind the first ones.
double seconds_beside(const Waves& first, const Fp8GemmSize& x, const Fp8LaunchConfig& c,
                      int multiprocessors) {
  const double one = kBegin + tile_seconds(x, c, c.per_sm, true) + sum_seconds(c);
  std::array<double, 2> begins = {first.whole, first.all};
  const std::array<std::uint32_t, 2> room = {
      resident_clusters(c, first.idle_last),
      resident_clusters(c, multiprocessors - first.idle_last)};
  double end = first.all;
  for (std::int64_t tiles = tiles_of(x, c); tiles > 0;) {
    const std::size_t i = room[1] == 0 || (room[0] != 0 && begins[0] <= begins[1]) ? 0 : 1;
    if (room[i] == 0) return std::numeric_limits<double>::infinity();
    tiles -= room[i];
    begins[i] += one;
    end = std::max(end, begins[i]);
  }
  return end;
}

Fp8Heuristic best_single(const Fp8GemmSize& x, const std::vector<Fp8LaunchConfig>& configs,
                         const cuda::Chip& chip) {
  Fp8Heuristic best;
  best.columns = x.n;
  best.expected_seconds = std::numeric_limits<double>::infinity();
  for (const Fp8LaunchConfig& c : configs) {
    const double seconds = expected_seconds(x, c, chip);
    if (seconds >= best.expected_seconds) continue;
    best.expected_seconds = seconds;
    best.first = c;
  }
  return best;
}

/// Columns that are computed when the last whole wave of all of D's tiles has ended.
std::int64_t columns_of_whole_waves(const Fp8GemmSize& x, const Fp8LaunchConfig& c,
                                    const cuda::Chip& chip) {
  const std::uint32_t resident = clusters_at_a_time(c, chip.multiprocessors);
  const std::int64_t of_column = ceil_div(x.m, c.rows) * x.batch;
  return tiles_of(x, c) / resident * resident / of_column * c.columns * x.sub_tiles();
}

/// The best division in which `first` computes all columns but the last ones; `best` if none is
/// better.
Fp8Heuristic best_column_split(const Fp8GemmSize& x, const Fp8LaunchConfig& first,
                               Fp8Heuristic best, const cuda::Chip& chip) {
  const std::int64_t step = least_columns(x);
  const auto split_at = [&](std::int64_t columns, std::uint32_t least_split) {
    const Fp8GemmSize head = columns_of(x, 0, columns);
    if (2 * tiles_of(head, first) < static_cast<std::uint32_t>(chip.multiprocessors)) return;
    const Fp8GemmSize tail = columns_of(x, columns, x.n - columns);
    const Waves waves = waves_of(head, first, chip.multiprocessors);
    if (waves.all >= best.expected_seconds - kLaunch) return;
    for (const Fp8LaunchConfig& rest : fp8_launch_configs(tail, chip)) {
      if (rest.split < least_split) continue;
      const double seconds =
          kLaunch +
          std::max(seconds_beside(waves, tail, rest, chip.multiprocessors), bytes_of(x) / kMemory);
      if (seconds >= best.expected_seconds) continue;
      best = {columns, first, rest, seconds};
    }
  };
  const std::int64_t last = (x.n - 1) / step * step;
  const std::int64_t least = std::max<std::int64_t>(step, last - (kMostColumnSplits - 1) * step);
  for (std::int64_t columns = last; columns >= least; columns -= step) split_at(columns, 1);
  // With more columns behind whole waves only a rest that divides K is as fast as the model says.
  const std::int64_t whole = columns_of_whole_waves(x, first, chip) / step * step;
  if (whole > 0 && whole < least) split_at(whole, 2);
  return best;
}

Fp8Heuristic found_heuristic(const Fp8GemmSize& x, const cuda::Chip& chip) {
  const std::vector<Fp8LaunchConfig> configs = fp8_launch_configs(x, chip);
  const Fp8Heuristic single = best_single(x, configs, chip);
  if (!x.may_split_columns) return single;
  Fp8Heuristic best = single;
  best.expected_seconds *= kWorthwhile;
  // Whole waves are best made of the widest tiles, whatever the last one needs.
  for (const Fp8LaunchConfig& c : configs) {
    const bool is_wide = c.rows >= 128 && c.columns == 128;
    if (c.split == 1 && (is_wide || c == single.first)) {
      best = best_column_split(x, c, best, chip);
    }
  }
  return best.rest ? best : single;
}

}  // namespace

Fp8GemmConfig kernel_of(const Fp8GemmSize& x, const Fp8LaunchConfig& c) {
  const Fp8GemmConfig config = {.rows = c.rows,
                                .columns = c.columns,
                                .promotion = x.promotion,
                                .quantizes = x.quantized_columns != 0};
  Fp8GemmConfig better = config;
  better.leaves_scales = !x.loads_scales;
  better.copies_scales = x.may_copy_scales && c.split == 1;
  return kFp8GemmKernels.find(better) >= 0 ? better : config;
}

std::uint32_t stages_that_fit(const Fp8GemmConfig& config, std::uint32_t split,
                              std::uint32_t per_sm, const cuda::Chip& chip, std::uint32_t beside) {
  const std::uint32_t bytes = std::min(static_cast<std::uint32_t>(chip.shared_bytes),
                                       kMultiprocessorBytes / per_sm - kReservedBytes);
  std::uint32_t stages = kMostStages;
  while (stages > 0 && memory_of(config, stages, split).total + beside > bytes) --stages;
  return stages < 3 ? 0 : stages;
}

Fp8GemmSize columns_of(const Fp8GemmSize& size, std::int64_t first, std::int64_t count) {
  Fp8GemmSize part = size;
  part.n = count;
  if (first != 0) part.may_copy_scales = false;  // they begin where a box may not
  return part;
}

std::int64_t least_columns(const Fp8GemmSize& x) {
  return std::max<std::int64_t>(kFp8BlockK, x.quantized_columns);
}

std::int64_t a_rows_of(const Fp8GemmSize& x, const Fp8LaunchConfig& c) {
  return std::min<std::int64_t>(c.rows, ceil_div(x.m, 8) * 8);
}

std::uint32_t grid_of(const Fp8GemmSize& x, const Fp8LaunchConfig& c, const cuda::Chip& chip) {
  const std::uint32_t tiles = tiles_of(x, c);
  return c.split > 1 ? tiles * c.split
                     : std::min(tiles, clusters_at_a_time(c, chip.multiprocessors));
}

double expected_seconds(const Fp8GemmSize& x, const Fp8LaunchConfig& c, const cuda::Chip& chip) {
  return kLaunch + sum_seconds(c) +
         std::max(waves_of(x, c, chip.multiprocessors).all, bytes_of(x) / kMemory);
}

double expected_gemv_seconds(const Fp8GemmSize& x) {
  constexpr double kRead = 4.6e12;  // bytes a second
  constexpr double kRowLaunch = 2e-6;
  return kRowLaunch + bytes_of(x) / kRead;
}

std::vector<Fp8LaunchConfig> fp8_launch_configs(const Fp8GemmSize& x, const cuda::Chip& chip) {
  std::vector<Fp8LaunchConfig> configs;
  const std::int64_t k_blocks = ceil_div(x.k, kFp8BlockK);
  for (const Fp8GemmConfig& config : kFp8GemmKernels.at) {
    if (config.promotion != x.promotion) continue;
    if (config.quantizes != (x.quantized_columns != 0)) continue;
    const auto most_per_sm = static_cast<std::uint32_t>(blocks_per_multiprocessor(config));
    for (std::uint32_t per_sm = 1; per_sm <= most_per_sm; ++per_sm) {
      for (std::uint32_t split = 1; split <= 8; ++split) {
        if (split > 1 && (per_sm > 1 || split > k_blocks || !x.may_split || x.sub_tiles() > 1))
          break;
        if (split > 1 && !can_split_k(config)) break;
        Fp8LaunchConfig c = {config.rows, config.columns, 0, split, per_sm};
        if (kernel_of(x, c) != config) continue;
        c.stages = stages_that_fit(config, split, per_sm, chip, 0);
        if (c.stages == 0) continue;
        // A cluster computes one tile: more of them than run at a time wait.
        if (split > 1 && tiles_of(x, c) > clusters_at_a_time(c, chip.multiprocessors)) continue;
        configs.push_back(c);
      }
    }
  }
  return configs;
}

Fp8Heuristic fp8_heuristic(const Fp8GemmSize& x, const cuda::Chip& chip) {
  // To compare all configs takes as long as a launch: each thread keeps what it has found, in a
  // slot for each value of a hash.
  using Key = std::array<std::int64_t, 12>;
  struct Slot {
    Key key{};  // of no size: the last number is positive
    Fp8Heuristic division;
  };
  constexpr std::size_t kSlots = 256;
  thread_local std::vector<Slot> slots(kSlots);
  const Key key = {x.m,
                   x.n,
                   x.k,
                   x.batch,
                   static_cast<int>(x.promotion),
                   x.may_split_columns,
                   x.may_split,
                   x.loads_scales,
                   x.may_copy_scales,
                   x.quantized_columns,
                   chip.multiprocessors,
                   chip.shared_bytes};
  Slot& slot = slots[runtime::hash_bytes(std::as_bytes(std::span(key))).low % kSlots];
  if (slot.key != key) slot = {key, found_heuristic(x, chip)};
  return slot.division;
}

}  // namespace blockscale::gemm_detail
