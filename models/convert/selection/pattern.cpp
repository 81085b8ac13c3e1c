#include "models/convert/selection/pattern.h"

#include <fnmatch.h>
#include <re2/re2.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <map>
#include <numeric>
#include <string_view>

#include "blockscale/convert.h"
#include "blockscale/error.h"
#include "models/dialects/dialect.h"
#include "models/text.h"

namespace blockscale::models {
namespace {

constexpr std::string_view kRegexPrefix = "re:";

std::shared_ptr<const re2::RE2> compile(const std::string& text, const std::string& argument) {
  re2::RE2::Options options;
  options.set_log_errors(false);
  auto regex = std::make_shared<const re2::RE2>(text.substr(kRegexPrefix.size()), options);
  if (text.size() == kRegexPrefix.size()) {
    throw Error(ErrorCode::invalid_argument, argument, quote(text) + " has no regular expression");
  }
  if (!regex->ok()) {
    throw Error(ErrorCode::invalid_argument, argument,
                quote(text) + " is no regular expression: " + quote(regex->error()) +
                    " (lookaround and backreferences are not available)");
  }
  return regex;
}

/// Runs of letters, digits and underscores, those of one character and numbers left out.
std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> found(1);
  for (const char c : text) {
    const bool part = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
    if (part) found.back() += c;
    if (!part && !found.back().empty()) found.emplace_back();
  }
  std::erase_if(found, [](const std::string& word) {
    return word.size() < 2 || word.find_first_not_of("0123456789") == std::string::npos;
  });
  return found;
}

/// Insertions, deletions and replacements that turn one word into the other.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

/// Mean over `wanted` of the nearest word's distance, in 0 (all are there) to 1.
double distance(const std::vector<std::string>& wanted, const std::vector<std::string>& present) {
  double sum = 0;
  for (const std::string& word : wanted) {
    double nearest = 1;
    for (const std::string& other : present) {
      const auto longer = static_cast<double>(std::max(word.size(), other.size()));
      nearest = std::min(nearest, static_cast<double>(edit_distance(word, other)) / longer);
    }
    sum += nearest;
  }
  return sum / static_cast<double>(wanted.size());
}

std::string without_numbers(std::string name) {
  std::erase_if(name, [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; });
  return name;
}

}  // namespace

Pattern::Pattern(std::string text, const std::string& argument) : text_(std::move(text)) {
  if (text_.starts_with(kRegexPrefix)) regex_ = compile(text_, argument);
}

bool Pattern::matches(const std::string& weight) const {
  return matches_name(weight) || matches_name(module_of(weight));
}

bool Pattern::matches_name(const std::string& name) const {
  if (regex_ == nullptr) return ::fnmatch(text_.c_str(), name.c_str(), 0) == 0;
  return regex_->Match(name, 0, name.size(), re2::RE2::ANCHOR_START, nullptr, 0);
}

std::vector<std::string> near_names(const std::string& pattern,
                                    const std::vector<std::string>& weights) {
  constexpr std::size_t kMost = 3;
  constexpr double kFar = 0.5;
  const bool regex = pattern.starts_with(kRegexPrefix);
  const std::vector<std::string> wanted =
      words(std::string_view(pattern).substr(regex ? kRegexPrefix.size() : 0));
  if (wanted.empty()) return {};
  std::map<std::string, std::string> modules;
  for (const std::string& weight : weights) {
    const std::string module = module_of(weight);
    modules.emplace(without_numbers(module), module);
  }
  std::vector<std::pair<double, std::string>> found;
  for (const auto& [key, module] : modules) {
    const double d = distance(wanted, words(module));
    if (d < kFar) found.emplace_back(d, module);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(kMost, found.size()); ++i) names.push_back(found[i].second);
  return names;
}

std::vector<Pattern> compiled(const std::vector<std::string>& texts, const char* argument) {
  std::vector<Pattern> patterns;
  for (const std::string& text : texts) patterns.emplace_back(text, argument);
  return patterns;
}

const Pattern* first_match(const std::vector<Pattern>& patterns, const std::string& weight) {
  const auto found = std::ranges::find_if(
      patterns, [&](const Pattern& pattern) { return pattern.matches(weight); });
  return found == patterns.end() ? nullptr : &*found;
}

void require_match(const Pattern& pattern, const char* argument,
                   const std::vector<std::string>& weights) {
  if (std::ranges::any_of(weights, [&](const auto& weight) { return pattern.matches(weight); })) {
    return;
  }
  std::string near;
  for (const std::string& name : near_names(pattern.text(), weights)) {
    near += (near.empty() ? "; near: " : ", ") + quote(name);
  }
  throw Error(ErrorCode::invalid_argument, argument,
              quote(pattern.text()) + " matches no tensor" + near);
}

}  // namespace blockscale::models

namespace blockscale {

std::vector<std::string> matching_weights(const std::vector<std::string>& weights,
                                          const std::vector<std::string>& patterns,
                                          const char* argument) {
  const std::vector<models::Pattern> compiled = models::compiled(patterns, argument);
  for (const models::Pattern& pattern : compiled) {
    models::require_match(pattern, argument, weights);
  }
  std::vector<std::string> matching;
  std::ranges::copy_if(weights, std::back_inserter(matching), [&](const std::string& weight) {
    return models::first_match(compiled, weight) != nullptr;
  });
  return matching;
}

}  // namespace blockscale
