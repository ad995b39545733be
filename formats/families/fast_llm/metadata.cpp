// SPDX-License-Identifier: Apache-2.0
#include "formats/families/fast_llm/metadata.h"

#include <algorithm>
#include <charconv>
#include <unordered_set>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/safetensors/file.h"

namespace fsdp::formats::fast_llm {
namespace {

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kIndex = "state_index";
constexpr std::size_t kStep = 2;  // blanks for each level

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 9 &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Metadata run() {
    while (!text_.empty()) {
      const std::size_t end = text_.find('\n');
      ++line_;
      if (end == text_.npos) fail("is cut off: it has no line end");
      take(text_.substr(0, end));
      text_.remove_prefix(end + 1);
    }
    for (const auto& [name, value] :
         {std::pair("fast_llm_version", &out_.version), std::pair("format", &out_.format),
          std::pair("model", &out_.model)}) {
      if (value->empty()) fail(cat("the file ends without ", quote(name)));
    }
    if (out_.shards.empty()) fail("the file ends without 'shards'");
    if (!key_.empty()) fail(cat("the file ends without a file for ", quote(key_, 200)));
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw Error(ErrorCode::kIndex, cat("line ", line_, ": ", why));
  }

  void take(std::string_view line) {
    const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
    const std::string_view rest = line.substr(indent);
    if (rest.empty()) return;  // inside a text of several lines
    if (indent == 0) {
      take_top(rest);
    } else if (top_ == "metadata" && indent == kStep) {
      take_second(rest);
    } else if (top_ == "metadata" && second_ == kIndex) {
      if (indent != 2 * kStep) fail(cat(quote(rest), " has ", indent, " blanks, expected 4"));
      take_entry(rest);
    } else if (top_ == "metadata" && second_ == "optimizer" && indent == 2 * kStep) {
      const auto [key, value] = divided(rest);
      if (key == "current_step") out_.step = whole(value);
    }
  }

  void take_top(std::string_view line) {
    if (line.starts_with("- ")) {
      if (top_ == "shards") out_.shards.push_back(scalar(line.substr(2)));
      return;
    }
    const auto [key, value] = divided(line);
    top_ = key;
    second_.clear();
    if (!known_.insert(top_).second) fail(cat(quote(top_), " is there twice"));
    if (top_ == "fast_llm_version") out_.version = scalar(value);
    if (top_ == "format") out_.format = scalar(value);
    if (top_ == "model") out_.model = scalar(value);
    if ((top_ == "shards" || top_ == "metadata") && !value.empty() && value != "{}")
      fail(cat(quote(value), " follows ", quote(top_), ", expected lines of its own"));
  }

  void take_second(std::string_view line) {
    if (line.starts_with("- ")) return;
    const auto [key, value] = divided(line);
    second_ = key;
    if (!known_.insert(cat("metadata/", second_)).second)
      fail(cat(quote(second_), " is there twice"));
    if (second_ == kIndex && !value.empty() && value != "{}")
      fail(cat(quote(value), " follows ", quote(second_), ", expected lines of its own"));
  }

  // Takes "name/shard: file", or, of a long name, "? name/shard" and ": file".
  void take_entry(std::string_view line) {
    if (line.starts_with(": ")) {
      if (key_.empty()) fail("a file follows no name");
      add(std::exchange(key_, {}), scalar(line.substr(2)));
      return;
    }
    if (!key_.empty()) fail(cat("no file follows ", quote(key_, 200)));
    if (line.starts_with("? ")) {
      key_ = scalar(line.substr(2));
      return;
    }
    const auto [key, value] = divided(line);
    add(scalar(key), scalar(value));
  }

  void add(std::string key, std::string file) {
    safetensors::check_tensor_name(key);
    if (!is_model_file(file))
      fail(
          cat("the file of ", quote(key, 200), " is ", quote(file), ", expected model_0", kSuffix));
    if (!known_.insert(cat("metadata/", kIndex, "/", key)).second)
      fail(cat(quote(key, 200), " is there twice"));
    out_.index.weight_map.push_back({std::move(key), std::move(file)});
  }

  std::pair<std::string_view, std::string_view> divided(std::string_view line) const {
    const std::size_t at =
        line.ends_with(':') && line.find(": ") == line.npos ? line.size() - 1 : line.find(": ");
    if (at == line.npos || at == 0) fail(cat("is ", quote(line, 200), ", expected 'key: value'"));
    return {line.substr(0, at), trimmed(line.substr(at + 1))};
  }

  // Reads a text without quotes, or with single ones.
  std::string scalar(std::string_view text) const {
    constexpr std::string_view kOther = "\"{}[]&*!|>%@`#,?:-";
    const bool quoted = text.size() >= 2 && text.starts_with('\'') && text.ends_with('\'');
    if (quoted) text = text.substr(1, text.size() - 2);
    if (text.empty() || text.find('\'') != text.npos || text.find(" #") != text.npos ||
        (!quoted && kOther.find(text.front()) != kOther.npos))
      fail(cat(quote(text, 200), " is not a text without quotes, or with single ones"));
    return std::string(text);
  }

  std::int64_t whole(std::string_view text) const {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < 0)
      fail(cat("current_step is ", quote(text), ", expected a whole number"));
    return number;
  }

  std::string_view text_;
  std::uint64_t line_ = 0;
  std::string top_, second_;  // the keys that deeper lines belong to
  std::string key_;           // waits for its file
  std::unordered_set<std::string> known_;
  Metadata out_;
};

}  // namespace

Metadata parse_metadata(std::string_view text) {
  return Parser(text).run();
}

bool is_model_file(std::string_view name) {
  if (!name.starts_with("model_") || !name.ends_with(kSuffix)) return false;
  name = name.substr(6, name.size() - 6 - kSuffix.size());
  const std::size_t at = name.find('_');
  return at == name.npos ? is_number(name)
                         : is_number(name.substr(0, at)) && is_number(name.substr(at + 1));
}

bool is_rank_file(std::string_view name) {
  return name.starts_with("rank_") && name.ends_with(kSuffix) &&
         is_number(name.substr(5, name.size() - 5 - kSuffix.size()));
}

}  // namespace fsdp::formats::fast_llm
