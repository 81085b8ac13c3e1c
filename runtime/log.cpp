#include "runtime/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <utility>

namespace blockscale::runtime {
namespace {

constexpr const char* kName = "blockscale";

std::shared_ptr<spdlog::logger> own_logger() {
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
  auto logger = std::make_shared<spdlog::logger>(kName, std::move(sink));
  logger->set_pattern("%n: %^%l%$: %v");
  logger->set_level(spdlog::level::warn);
  return logger;
}

}  // namespace

std::shared_ptr<spdlog::logger> log() {
  if (auto registered = spdlog::get(kName)) return registered;
  static const auto& own = *new std::shared_ptr<spdlog::logger>(own_logger());
  return own;
}

}  // namespace blockscale::runtime
