// SPDX-License-Identifier: Apache-2.0
#include "formats/state/model/key_check.h"

#include <string>
#include <variant>

#include "formats/bytes/base/characters.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

// Returns what is wrong with a name; empty if nothing is.
std::string name_fault(const std::string& key, const KeyPath& path) {
  for (const PathStep& step : path) {
    const auto* text = std::get_if<std::string>(&step);
    if (text != nullptr && text->empty())
      return path.size() == 1 ? "the key is empty" : "a part of the key is empty";
  }
  for (std::size_t at = 0; at < key.size();) {
    const auto [code, length] = character_at(key, at);
    if (length == 0) return cat("the key is not UTF-8 at byte ", at);
    if (code == 0) return cat("the key has a NUL at byte ", at);
    if (is_control(code)) return cat("the key has a control character at byte ", at);
    if (is_hidden(code)) {
      return cat("the key has an invisible character, ", code_text(code), ", at byte ", at);
    }
    at += length;
  }
  return {};
}

}  // namespace

void check_names(const Index& index, Findings& findings) {
  const auto check = [&](const std::string& key, const KeyPath& path) {
    const std::string what = name_fault(key, path);
    if (what.empty()) return;
    findings.push_back({.code = ErrorCode::kName,
                        .message = what,
                        .file = {},
                        .key = key,
                        .bytes = {},
                        .severity = Finding::Severity::kWarning});
  };
  for (const TensorEntry& tensor : index.tensors) check(tensor.key, tensor.path);
  for (const ValueEntry& value : index.values) check(value.key, value.path);
}

}  // namespace fsdp::formats
