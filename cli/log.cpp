#include "log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "command.h"

namespace blockscale::cli {
namespace {

constexpr spdlog::level::level_enum kDefaultLevel = spdlog::level::warn;

std::string name_of(spdlog::level::level_enum level) {
  const auto view = spdlog::level::to_string_view(level);
  return std::string(view.data(), view.size());
}

std::vector<std::string> log_levels() {
  std::vector<std::string> names;
  for (int i = 0; i < spdlog::level::n_levels; ++i) {
    names.push_back(name_of(static_cast<spdlog::level::level_enum>(i)));
  }
  return names;
}

spdlog::level::level_enum requested_level() {
  const char* const text = std::getenv("BLOCKSCALE_LOG");
  if (text == nullptr || *text == '\0') return kDefaultLevel;
  const std::vector<std::string> names = log_levels();
  std::string allowed;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) return static_cast<spdlog::level::level_enum>(i);
    allowed += (i == 0 ? "" : ", ") + names[i];
  }
  throw UsageError("BLOCKSCALE_LOG: '" + std::string(text) + "' is no level; choose one of " +
                   allowed);
}

}  // namespace

void set_up_log() {
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  auto logger = std::make_shared<spdlog::logger>("blockscale", std::move(sink));
  logger->set_pattern("%n: %^%l%$: %v");
  logger->set_level(requested_level());
  spdlog::set_default_logger(std::move(logger));
}

std::string current_log_level() {
  return name_of(spdlog::default_logger()->level());
}

}  // namespace blockscale::cli
