// Every wrapper of device/ptx is called by a golden program, so that the emulator is compared with
// what a GPU did. By name: overloads of one name pass for each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace blockscale {
namespace {

/// Why no golden program calls it.
const std::map<std::string, std::string> kExceptions = {
    {"accept_any_shared", "is no instruction"},
    {"in_register", "is no instruction"},
    {"pin_registers", "is no instruction"},
    {"get", "reads a fragment's register"},
    {"set", "writes a fragment's register"},
    {"laneid_here", "is laneid, asked for again"},
    {"ld_global_nc_narrow_if",
     "is ld_global_nc_if of 1 or 2 bytes; GPU tests of few rows of FP4 read scales by it"},
    {"ld_global_nc_u8_if",
     "is ld_global_nc_if of a byte; plain kernels' GPU tests read scales by it"},
    {"rcp_approx_ftz", "its last bit is the GPU's own"},
    {"ex2_approx_ftz", "its last bit is the GPU's own"},
};

// --- a preprocessor, as far as these headers need one
// ----------------------------------------------

bool in_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

/// The end of the word that begins at `at`.
std::size_t end_of_word(std::string_view text, std::size_t at) {
  while (at < text.size() && in_word(text[at])) ++at;
  return at;
}

/// Without comments, what stands in string literals, and ends of lines that are continued.
std::string code_of(std::string_view text) {
  std::string code;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    if (rest.starts_with("//")) {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if (rest.starts_with("/*")) {
      i = std::min(text.find("*/", i + 2), text.size() - 2) + 1;
    } else if (rest.starts_with("\\\n")) {
      ++i;
    } else if (text[i] == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\' ? 1 : 0;
      code += "\"\"";
    } else {
      code += text[i];
    }
  }
  return code;
}

struct Macro {
  std::vector<std::string> parameters;
  std::string body;
};
using Macros = std::map<std::string, Macro>;

/// Parts between commas outside of parentheses; `end` is set behind the closing one.
std::vector<std::string> arguments_at(std::string_view text, std::size_t at, std::size_t& end) {
  std::vector<std::string> arguments(1);
  for (int depth = 1; at < text.size(); ++at) {
    const char c = text[at];
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (depth == 0) break;
    if (depth == 1 && c == ',') {
      arguments.emplace_back();
    } else if (c != ' ' || !arguments.back().empty()) {
      arguments.back() += c;
    }
  }
  end = std::min(at + 1, text.size());
  return arguments;
}

/// The body with arguments for parameters, and ## done.
std::string substituted(const Macro& macro, const std::vector<std::string>& arguments) {
  std::map<std::string, std::string, std::less<>> values;
  for (std::size_t i = 0; i < macro.parameters.size() && i < arguments.size(); ++i) {
    if (macro.parameters[i] != "...") {
      values[macro.parameters[i]] = arguments[i];
      continue;
    }
    std::string& rest = values["__VA_ARGS__"] = arguments[i];
    while (++i < arguments.size()) rest += ", " + arguments[i];
  }
  std::string result;
  for (std::size_t i = 0; i < macro.body.size();) {
    const std::size_t end = std::max(end_of_word(macro.body, i), i + 1);
    const std::string word = macro.body.substr(i, end - i);
    const auto value = values.find(word);
    result += value == values.end() ? word : value->second;
    i = end;
  }
  return std::regex_replace(result, std::regex(" *## *"), "");
}

std::string expanded(std::string_view text, const Macros& macros) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = std::max(end_of_word(text, i), i + 1);
    const std::string word(text.substr(i, end - i));
    const auto macro = macros.find(word);
    if (macro != macros.end() && end < text.size() && text[end] == '(') {
      const std::vector<std::string> arguments = arguments_at(text, end + 1, end);
      result += expanded(substituted(macro->second, arguments), macros);
    } else {
      result += word;
    }
    i = end;
  }
  return result;
}

/// Code without directives, function-like macros expanded. Both sides of an #if are kept; of a
/// macro that both define, the first definition.
std::string preprocessed(std::string_view text) {
  static const std::regex define(R"( *# *define (\w+)\(([^)]*)\)(.*))");
  std::istringstream lines(code_of(text));
  Macros macros;
  std::string code;
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, define)) {
      std::size_t end = 0;
      macros.try_emplace(match[1], Macro{arguments_at(match[2].str(), 0, end), match[3]});
    } else if (line.find_first_not_of(' ') == std::string::npos ||
               line[line.find_first_not_of(' ')] != '#') {
      code += line + "\n";
    }
  }
  return expanded(code, macros);
}

// --- names
// -----------------------------------------------------------------------------------------

std::set<std::string> names_in(const std::string& code, const char* pattern) {
  const std::regex regex(pattern);
  std::set<std::string> names;
  for (std::sregex_iterator i(code.begin(), code.end(), regex), end; i != end; ++i) {
    names.insert((*i)[1]);
  }
  return names;
}

/// Functions of a header of device/ptx.
std::set<std::string> defined_in(std::string_view header) {
  return names_in(preprocessed(header), R"(BLOCKSCALE_DEVICE\s[\w:<>*&\s]*?[\s*&](\w+)\s*\()");
}

/// What is called of the namespaces of these headers, with template arguments or without.
std::set<std::string> called_in(std::string_view programs) {
  return names_in(preprocessed(programs), R"(\b(?:ptx|device)::(\w+)\s*[<(])");
}

std::set<std::string> without(std::set<std::string> names, const std::set<std::string>& others) {
  for (const std::string& name : others) names.erase(name);
  return names;
}

std::string text_of(const std::string& path) {
  std::ifstream file(std::filesystem::path(BLOCKSCALE_SOURCE_DIR) / path);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(DeviceWrappers, AreAllInTheGoldenPrograms) {
  std::set<std::string> defined, called;
  const std::filesystem::path root = BLOCKSCALE_SOURCE_DIR;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "device/ptx")) {
    const std::filesystem::path folder = entry.path().parent_path().filename();
    if (entry.is_directory() || folder == "sm100" || folder == "sm120") {
      continue;  // Hopper lacks those
    }
    const auto names = defined_in(text_of(std::filesystem::relative(entry.path(), root).string()));
    EXPECT_FALSE(names.empty()) << entry.path();
    defined.insert(names.begin(), names.end());
  }
  for (const char* header :
       {"operations.h", "programs.h", "hopper_programs.h", "tensor_programs.h"}) {
    called.merge(called_in(text_of(std::string("device/golden/") + header)));
  }
  std::set<std::string> excepted;
  for (const auto& [name, reason] : kExceptions) {
    EXPECT_TRUE(defined.contains(name)) << name << " is excepted, and is no wrapper";
    EXPECT_FALSE(called.contains(name)) << name << " is excepted, and a program calls it";
    excepted.insert(name);
  }
  EXPECT_THAT(without(without(defined, called), excepted), testing::IsEmpty());
  EXPECT_THAT(defined, testing::IsSupersetOf({"fma_rn_bf16x2", "neg_f16x2", "tid_x", "nctaid_z",
                                              "st_global", "shared_base", "redux_sync_xor"}));
}

TEST(DeviceWrappers, AreFoundHoweverTheyAreWritten) {
  constexpr std::string_view kHeader = R"text(
#if BLOCKSCALE_GPU
#define MAKE(name, kind)                        \
  BLOCKSCALE_DEVICE uint32_t name##_##kind() {  \
    return asm("BLOCKSCALE_DEVICE int text()");
}
#else
#define MAKE(name, kind)                       \
  BLOCKSCALE_DEVICE uint32_t name##_##kind() { \
    return emulator::name();                   \
  }
#endif
MAKE(made, one)
MAKE(made, two)
BLOCKSCALE_DEVICE const Word* pointer(const Word* a) {
  return a;
}
template <class T, int kCount = 2>
BLOCKSCALE_DEVICE
Vector<T>& reference(
    T a = T()) {}
// BLOCKSCALE_DEVICE int comment();
/* BLOCKSCALE_DEVICE int other(); */
)text";
  EXPECT_EQ(defined_in(kHeader),
            (std::set<std::string>{"made_one", "made_two", "pointer", "reference"}));
}

TEST(DeviceWrappers, AreCalledInCodeAlone) {
  constexpr std::string_view kPrograms = R"text(
#define PROGRAM(name, ...) struct name { int run() { return ptx::name##_x2(__VA_ARGS__); } };
PROGRAM(made, ptx::inner(a, 1), b)
struct uncalled { const char* name = "ptx::text()";
};  // ptx::comment(a) is not enough
int run() {
  return unary::other(1) + ptx::load<int>(2) + device::base() /* ptx::also(1) */;
}
)text";
  EXPECT_EQ(called_in(kPrograms), (std::set<std::string>{"made_x2", "inner", "load", "base"}));
}

}  // namespace
}  // namespace blockscale
