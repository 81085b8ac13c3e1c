// Patterns of weight names, as the options that choose weights take them.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace re2 {
class RE2;
}

namespace blockscale::models {

/// Either a glob (*, ?, [..]; * matches dots too), which must match the whole name, or `re:` and a
/// regular expression that must match from the name's start, as llm-compressor and
/// compressed-tensors mean it (Python's re.match). Matching takes time linear in the name.
class Pattern {
 public:
  /// Throws invalid_argument naming `argument` for what is no regular expression, or needs
  /// lookaround or backreferences.
  Pattern(std::string text, const std::string& argument);

  const std::string& text() const { return text_; }
  /// Whether it matches the weight's name or its module's.
  bool matches(const std::string& weight) const;

 private:
  bool matches_name(const std::string& name) const;

  std::string text_;
  std::shared_ptr<const re2::RE2> regex_;  // null: a glob
};

std::vector<Pattern> compiled(const std::vector<std::string>& texts, const char* argument);

/// Null: none matches.
const Pattern* first_match(const std::vector<Pattern>& patterns, const std::string& weight);

/// Throws invalid_argument naming `argument`, with near names, if `pattern` matches no weight.
void require_match(const Pattern& pattern, const char* argument,
                   const std::vector<std::string>& weights);

/// At most three of the modules of `weights` whose names have the words of `pattern`, or words that
/// differ by few letters; of modules that differ in numbers only, the first. Nearest first.
std::vector<std::string> near_names(const std::string& pattern,
                                    const std::vector<std::string>& weights);

}  // namespace blockscale::models
