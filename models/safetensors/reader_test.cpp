// Reader: each rule of the format broken once, and what it gives for a file that keeps them.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <functional>

#include "blockscale/files.h"
#include "blockscale/safetensors.h"
#include "models/safetensors/header.h"
#include "models/testing.h"

namespace blockscale {
namespace {

using test::expect_error;
using test::safetensors_bytes;
using test::ScratchFolder;
using test::write_text;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// One tensor entry of a header.
std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                  std::string_view offsets) {
  return "\"" + std::string(name) + "\":{\"dtype\":\"" + std::string(dtype) +
         "\",\"shape\":" + std::string(shape) + ",\"data_offsets\":" + std::string(offsets) + "}";
}

struct HostileFile {
  std::string what;    // for the test's output
  std::string bytes;   // of the file
  std::string reason;  // that the error states
};

HostileFile hostile(std::string what, std::string_view header, std::string_view data,
                    std::string reason) {
  return {std::move(what), safetensors_bytes(header, data), std::move(reason)};
}

std::vector<HostileFile> broken_lengths() {
  const std::string good = safetensors_bytes("{" + entry("a", "U8", "[2]", "[0,2]") + "}", "xy");
  const std::string header_at_end = safetensors_bytes("{}", "").substr(0, 8) + "{";
  std::string huge = good;
  huge.replace(0, 8, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF");
  std::string beyond_limit = good;
  beyond_limit.replace(0, 8, std::string("\x01\xE1\xF5\x05\0\0\0\0", 8));  // 100,000,001
  return {
      {"empty file", "", "this one has 0"},
      {"shorter than its length field", "\x02\0\0", "this one has"},
      {"length alone", good.substr(0, 8), "exceeds the file, which holds 0"},
      {"header cut", good.substr(0, 20), "truncated?"},
      {"length one too long", header_at_end, "header length 2 exceeds the file"},
      {"length of 2^64 - 1", huge, "exceeds the limit of 100000000"},
      {"length over the limit", beyond_limit, "header length 100000001 exceeds the limit"},
      {"no header", safetensors_bytes("", ""), "does not start with '{'"},
      {"data cut", good.substr(0, good.size() - 1), "2 bytes of data, the file holds 1 (trunc"},
      {"bytes after the data", good + "z", "2 bytes of data, the file holds 3"},
  };
}

std::vector<HostileFile> broken_json() {
  const std::string a = entry("a", "U8", "[2]", "[0,2]");
  const std::string deep(100'000, '[');
  return {
      hostile("leading space", " {}", "", "does not start with '{'"),
      hostile("array", "[]", "", "does not start with '{'"),
      hostile("byte order mark", "\xEF\xBB\xBF{}", "", "does not start with '{'"),
      hostile("unfinished", "{" + a, "xy", "not valid JSON at byte"),
      hostile("trailing comma", "{" + a + ",}", "xy", "not valid JSON at byte"),
      hostile("second value", "{" + a + "}{}", "xy", "not valid JSON at byte"),
      hostile("comment", "{" + a + "/* */}", "xy", "not valid JSON at byte"),
      hostile("NUL", std::string("{}\0{}", 5), "", "NUL byte at position 2"),
      hostile("NUL padding", std::string("{}\0\0\0\0\0\0", 8), "", "NUL byte"),
      hostile("invalid UTF-8", "{" + entry("a\xFF", "U8", "[2]", "[0,2]") + "}", "xy",
              "not valid JSON"),
      hostile("overlong UTF-8", "{" + entry("\xC0\x80", "U8", "[2]", "[0,2]") + "}", "xy",
              "not valid JSON"),
      hostile("lone surrogate", "{" + entry("\\ud800", "U8", "[2]", "[0,2]") + "}", "xy",
              "not valid JSON"),
      hostile("raw newline in a name", "{" + entry("a\nb", "U8", "[2]", "[0,2]") + "}", "xy",
              "not valid JSON"),
      hostile("deep array", "{\"a\":" + deep, "", "tensor \"a\": must be an object"),
      hostile("deep shape", "{\"a\":{\"shape\":" + deep, "", "shape must hold"),
      hostile("deep object", "{\"a\":{\"dtype\":{", "", "dtype must be a string"),
      hostile("number out of range", "{\"a\":{\"shape\":[1e999", "", "not valid JSON"),
  };
}

std::vector<HostileFile> broken_entries() {
  const auto tensor = [](std::string what, std::string_view dtype, std::string_view shape,
                         std::string_view offsets, std::string reason) {
    return hostile(std::move(what), "{" + entry("w", dtype, shape, offsets) + "}", "abcd",
                   std::move(reason));
  };
  const auto entry_text = [](std::string what, std::string_view value, std::string reason) {
    return hostile(std::move(what), "{\"w\":" + std::string(value) + "}", "abcd",
                   std::move(reason));
  };
  return {
      tensor("unknown dtype", "F7", "[4]", "[0,4]", "dtype \"F7\" is unknown"),
      tensor("dtype in lower case", "u8", "[4]", "[0,4]", "dtype \"u8\" is unknown"),
      tensor("negative dimension", "U8", "[-4]", "[0,4]", "found a negative number"),
      tensor("dimension -0", "U8", "[-0]", "[0,4]", "found a negative number"),
      tensor("fractional dimension", "U8", "[4.0]", "[0,4]", "found the number \"4.0\""),
      tensor("exponent", "U8", "[4e0]", "[0,4]", "found the number \"4e0\""),
      tensor("dimension of 2^63", "U8", "[9223372036854775808]", "[0,4]", "exceeds 2^63 - 1"),
      tensor("dimension of 2^64", "U8", "[18446744073709551616]", "[0,4]", "found the number"),
      tensor("product of 2^64", "U8", "[4294967296,4294967296]", "[0,4]", "elements exceeds 2^63"),
      tensor("2^63 bits", "F64", "[144115188075855872]", "[0,4]", "bits exceeds 2^63"),
      tensor("overflow beside a zero", "U8", "[0,4294967296,4294967296]", "[0,0]",
             "elements exceeds 2^63"),
      tensor("dimension a string", "U8", "[\"4\"]", "[0,4]", "found a string"),
      tensor("dimension null", "U8", "[null]", "[0,4]", "found null"),
      tensor("dimension an array", "U8", "[[4]]", "[0,4]", "found an array"),
      tensor("shape a number", "U8", "4", "[0,4]", "shape must be an array, found a number"),
      tensor("shape an object", "U8", "{}", "[0,4]", "shape must be an array, found an object"),
      tensor(
          "65 dimensions", "U8",
          "[4" +
              [] {
                std::string ones;
                for (int i = 0; i < 64; ++i) ones += ",1";
                return ones;
              }() +
              "]",
          "[0,4]", "more than 64 dimensions"),
      tensor("offsets too large", "U8", "[4]", "[0,5]", "do not hold the 4 bytes"),
      tensor("offsets too small", "F32", "[2]", "[0,4]", "do not hold the 8 bytes"),
      tensor("offsets backwards", "U8", "[4]", "[4,0]", "run backwards"),
      tensor("offsets that wrap", "U8", "[4]", "[18446744073709551615,3]", "run backwards"),
      tensor("one offset", "U8", "[4]", "[4]", "data_offsets needs two"),
      tensor("three offsets", "U8", "[4]", "[0,4,4]", "more than two"),
      tensor("no offset", "U8", "[4]", "[]", "data_offsets needs two"),
      tensor("offset fractional", "U8", "[4]", "[0,4.0]", "found the number"),
      tensor("offset negative", "U8", "[4]", "[-1,3]", "found a negative number"),
      tensor("offset a boolean", "U8", "[4]", "[false,true]", "found a boolean"),
      tensor("offsets a string", "U8", "[4]", "\"0,4\"", "data_offsets must be an array"),
      tensor("F4 in half a byte", "F4", "[7]", "[0,4]", "whole number of bytes"),
      tensor("F6 in half a byte", "F6_E2M3", "[5]", "[0,4]", "whole number of bytes"),
      tensor("F6 sized as U8", "F6_E3M2", "[4]", "[0,4]", "do not hold the 3 bytes"),
      tensor("F4 sized as U8", "F4", "[4]", "[0,4]", "do not hold the 2 bytes"),
      entry_text("null", "null", "must be an object, found null"),
      entry_text("a string", "\"x\"", "must be an object, found a string"),
      entry_text("empty", "{}", "dtype, shape and data_offsets are all needed"),
      entry_text("no dtype", R"({"shape":[4],"data_offsets":[0,4]})", "are all needed"),
      entry_text("no shape", R"({"dtype":"U8","data_offsets":[0,4]})", "are all needed"),
      entry_text("no offsets", R"({"dtype":"U8","shape":[4]})", "are all needed"),
      entry_text("unknown field", R"({"dtype":"U8","x":1})", "unknown field \"x\""),
      entry_text("field twice", R"({"dtype":"U8","dtype":"U8"})", "field \"dtype\" appears twice"),
      entry_text("dtype null", R"({"dtype":null})", "dtype must be a string, found null"),
      entry_text("dtype an array", R"({"dtype":["U8"]})", "dtype must be a string, found an array"),
  };
}

std::vector<HostileFile> broken_layouts() {
  const auto file = [](std::string what, std::string_view header, std::string reason) {
    return hostile(std::move(what), "{" + std::string(header) + "}", "abcd", std::move(reason));
  };
  const std::string a = entry("a", "U8", "[2]", "[0,2]");
  const std::string b = entry("b", "U8", "[2]", "[2,4]");
  return {
      file("name twice", a + "," + entry("a", "U8", "[2]", "[2,4]"),
           "\"a\": the name appears twice"),
      file("overlap", entry("a", "U8", "[3]", "[0,3]") + "," + b,
           "overlapping \"a\", which ends at 3"),
      file("same bytes", a + "," + entry("c", "U8", "[2]", "[0,2]"), "overlapping"),
      file("inside another",
           entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[1]", "[1,2]"),
           "overlapping"),
      file("empty inside another",
           entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[0]", "[1,1]"),
           "overlapping"),
      file("hole first", entry("b", "U8", "[3]", "[1,4]"), "leaving a hole after the start"),
      file("hole between", entry("a", "U8", "[1]", "[0,1]") + "," + b,
           "leaving a hole after \"a\""),
      file("beyond the end", a + "," + entry("b", "U8", "[3]", "[2,5]"), "take 5 bytes of data"),
      file("far beyond the end",
           entry("a", "U8", "[1]", "[9223372036854775807,9223372036854775808]"), "leaving a hole"),
      file("empty beyond the end", a + "," + b + "," + entry("c", "U8", "[0]", "[5,5]"), "hole"),
      file("no tensors but data", "", "take 0 bytes of data, the file holds 4"),
      file("control character", entry("a\\u0000b", "U8", "[4]", "[0,4]"),
           "\"a\\x00b\" holds a control"),
      file("escape sequence", entry("\\u001b[2J", "U8", "[4]", "[0,4]"),
           "holds a control character"),
      file("DEL", entry("\x7F", "U8", "[4]", "[0,4]"), "holds a control character"),
      file("C1 control", entry("\\u009b2J", "U8", "[4]", "[0,4]"), "holds a control character"),
      file("name of 1025 bytes", entry(std::string(1025, 'n'), "U8", "[4]", "[0,4]"),
           "more than 1024 bytes"),
      file("metadata null", "\"__metadata__\":null", "must be an object, found null"),
      file("metadata an array", "\"__metadata__\":[]", "must be an object, found an array"),
      file("metadata a number", R"("__metadata__":{"k":1})",
           "map strings to strings, found a number"),
      file("metadata nested", R"("__metadata__":{"k":{}})", "strings to strings, found an object"),
      file("metadata null value", R"("__metadata__":{"k":null})", "strings to strings, found null"),
      file("metadata key twice", R"("__metadata__":{"k":"1","k":"2"})", "\"k\" more than once"),
      file("metadata twice", R"("__metadata__":{},"__metadata__":{})", "appears twice"),
  };
}

/// Every file is refused as corrupt, by its name, its own reason and `common`.
void expect_refused(const std::vector<HostileFile>& files, const std::string& common = "") {
  const ScratchFolder folder;
  const std::filesystem::path path = folder / "hostile.safetensors";
  for (const HostileFile& file : files) {
    SCOPED_TRACE(file.what);
    write_text(path, file.bytes);
    expect_error(ErrorCode::corrupt_file, path.string(), file.reason,
                 [&] { SafetensorsFile::open(path); });
    expect_error(ErrorCode::corrupt_file, path.string(), common,
                 [&] { SafetensorsFile::open(path); });
  }
}

TEST(SafetensorsFile, RefusesBrokenLengths) {
  expect_refused(broken_lengths());
}
TEST(SafetensorsFile, RefusesBrokenJson) {
  expect_refused(broken_json());
}
TEST(SafetensorsFile, RefusesBrokenEntries) {
  expect_refused(broken_entries(), "tensor \"w\": ");
}
TEST(SafetensorsFile, RefusesBrokenLayouts) {
  expect_refused(broken_layouts());
}

TEST(SafetensorsFile, EveryTruncationIsRefused) {
  const std::string good = safetensors_bytes(
      "{" + entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "U8", "[3]", "[8,11]") + "}",
      "01234567abc");
  const auto bytes = std::as_bytes(std::span(good));
  EXPECT_EQ(parse_header(bytes, "good").tensors.size(), 2u);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(parse_header(bytes.first(size), "cut"), Error) << size;
  }
}

TEST(SafetensorsFile, ReadsTensorsInFileOrder) {
  const ScratchFolder folder;
  const std::filesystem::path path = folder / "good.safetensors";
  // Header order differs from file order; empty tensors may share an offset; fields in any order.
  write_text(path, safetensors_bytes("{" + entry("z", "U8", "[2,0]", "[4,4]") + "," +
                                         entry("b", "U8", "[1]", "[4,5]") + "," +
                                         R"("__metadata__":{"k":"v","":""},)" +
                                         R"("a":{"data_offsets":[0,4],"dtype":"F32","shape":[]},)" +
                                         entry("\\u00e9x", "U8", "[0]", "[5,5]") + "}\n\t ",
                                     "0123b"));
  const SafetensorsFile file = SafetensorsFile::open(path);
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_THAT(file.tensors()[0].shape, IsEmpty());
  EXPECT_EQ(file.tensors()[1].name, "z");
  EXPECT_THAT(file.tensors()[1].shape, ElementsAre(2, 0));
  EXPECT_EQ(file.tensors()[2].name, "b");
  EXPECT_EQ(file.tensors()[3].name, "éx");
  EXPECT_EQ(text_of(file.data(file.tensors()[0])), "0123");
  EXPECT_EQ(text_of(file.data(file.tensors()[1])), "");
  EXPECT_EQ(text_of(file.data(*file.find("b"))), "b");
  EXPECT_THAT(file.metadata(), ElementsAre(Pair("", ""), Pair("k", "v")));
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(file.find(""), nullptr);
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(file.file_bytes(), std::filesystem::file_size(path));
  expect_error(ErrorCode::invalid_argument, "tensor", "\"c\" of 1 bytes is not in",
               [&] { file.data(TensorInfo{"c", DType::U8, {1}, 1}); });
  expect_error(ErrorCode::invalid_argument, "tensor", "\"b\" of 9 bytes is not in",
               [&] { file.data(TensorInfo{"b", DType::U8, {9}, 9}); });
}

TEST(SafetensorsFile, DataOutlivesItsFirstOwnerAndDrops) {
  const ScratchFolder folder;
  const std::filesystem::path path = folder / "a.safetensors";
  const std::string data(10'000, 'x');
  write_text(path, safetensors_bytes("{" + entry("a", "U8", "[10000]", "[0,10000]") + "}", data));
  std::optional<SafetensorsFile> first = SafetensorsFile::open(path);
  const SafetensorsFile second = *first;
  const std::span<const std::byte> bytes = first->data(*first->find("a"));
  first.reset();
  std::filesystem::remove(path);
  EXPECT_EQ(text_of(bytes), data);
  second.drop(*second.find("a"));
  EXPECT_EQ(text_of(bytes), data);
}

TEST(SafetensorsFile, FileThatShrinksIsReported) {
  const ScratchFolder folder;
  const std::filesystem::path path = folder / "a.safetensors";
  write_text(path, safetensors_bytes("{" + entry("a", "U8", "[9000]", "[0,9000]") + "}",
                                     std::string(9000, 'x')));
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::filesystem::resize_file(path, 100);
  expect_error(ErrorCode::io, path.string(), "shrank while in use",
               [&] { file.data(*file.find("a")); });
}

/// What a child process that runs `body` writes to standard error, then " exit N" or " signal N".
std::string last_words(const std::function<void()>& body) {
  const ScratchFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    if (std::freopen((folder / "stderr").c_str(), "w", stderr) == nullptr) ::_exit(99);
    body();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  const std::string end = WIFEXITED(status) ? " exit " + std::to_string(WEXITSTATUS(status))
                                            : " signal " + std::to_string(WTERMSIG(status));
  return test::read_text(folder / "stderr") + end;
}

TEST(SafetensorsFile, FileThatShrinksUnderAReaderIsNamed) {
  const ScratchFolder folder;
  const std::filesystem::path path = folder / "a.safetensors";
  const std::string words = last_words([&] {
    exit_on_truncated_mapping(7);
    write_text(path, safetensors_bytes("{" + entry("a", "U8", "[90000]", "[0,90000]") + "}",
                                       std::string(90'000, 'x')));
    const SafetensorsFile other = SafetensorsFile::open(path);
    const SafetensorsFile file = SafetensorsFile::open(path);
    const std::span<const std::byte> data = file.data(*file.find("a"));
    std::filesystem::resize_file(path, 100);
    ::_exit(std::to_integer<int>(data[80'000]));
  });
  EXPECT_EQ(words, "blockscale: " + path.string() + ": the file shrank while it was read\n exit 7");
}

TEST(SafetensorsFile, OtherBusErrorsAreLeftAlone) {
  const auto by_default = [] { ::signal(SIGBUS, SIG_DFL); };
  EXPECT_EQ(last_words([&] {
              by_default();
              exit_on_truncated_mapping(7);
              ::raise(SIGBUS);
            }),
            " signal " + std::to_string(SIGBUS));
  EXPECT_EQ(last_words([&] {
              by_default();
              exit_on_truncated_mapping(7);
              const ScratchFolder folder;
              write_text(folder / "other", std::string(90'000, 'x'));
              const int descriptor = ::open((folder / "other").c_str(), O_RDWR);
              const void* data = ::mmap(nullptr, 90'000, PROT_READ, MAP_SHARED, descriptor, 0);
              std::filesystem::resize_file(folder / "other", 0);
              ::_exit(static_cast<const volatile char*>(data)[80'000]);
            }),
            " signal " + std::to_string(SIGBUS));
}

TEST(SafetensorsFile, OpensOnlyRegularFiles) {
  const ScratchFolder folder;
  expect_error(ErrorCode::not_found, (folder / "none").string(), "No such file",
               [&] { SafetensorsFile::open(folder / "none"); });
  expect_error(ErrorCode::io, folder.path().string(), "not a regular file",
               [&] { SafetensorsFile::open(folder.path()); });
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  expect_error(ErrorCode::io, (folder / "fifo").string(), "not a regular file",
               [&] { SafetensorsFile::open(folder / "fifo"); });
  std::filesystem::create_symlink(folder / "loop", folder / "loop");
  expect_error(ErrorCode::io, (folder / "loop").string(), "symbolic links",
               [&] { SafetensorsFile::open(folder / "loop"); });
  write_text(folder / "file", "x");
  expect_error(ErrorCode::not_found, (folder / "file" / "x").string(), "Not a directory",
               [&] { SafetensorsFile::open(folder / "file" / "x"); });
}

}  // namespace
}  // namespace blockscale
