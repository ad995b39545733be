// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/writing/given_names.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "tools/verbs/writing/rewriting.h"

namespace fsdp::cli {
namespace {

using formats::cat;

// Parses one name per line, or a JSON list.
std::vector<std::string> parse_names(const std::string& text) {
  std::vector<std::string> names;
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '[') {
    const formats::Json json = formats::parse_json(text);
    for (const formats::Json& name : *json.as_array()) {
      if (name.as_string() == nullptr) {
        throw Error(ErrorCode::kJson, cat("name ", names.size() + 1, " is ",
                                          formats::json_kind(name), ", expected a string"));
      }
      names.push_back(*name.as_string());
    }
    return names;
  }
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    if (line.ends_with('\r')) line.pop_back();
    if (!formats::is_utf8(line))
      throw Error(ErrorCode::kUtf8, cat("name ", names.size() + 1, " is not UTF-8"));
    if (!line.empty()) names.push_back(std::move(line));
  }
  return names;
}

}  // namespace

formats::ParameterOrder read_names(const std::string& path) {
  return in_context(formats::escape(path), [&] {
    formats::ParameterOrder order;
    order.origin = formats::escape(path);
    order.for_ids = true;
    for (std::string& name : parse_names(read_text_file(path)))
      order.parameters.push_back({std::move(name), std::nullopt});
    if (order.parameters.empty()) throw Error(ErrorCode::kEmpty, "holds no name");
    return order;
  });
}

}  // namespace fsdp::cli
