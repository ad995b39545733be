// SPDX-License-Identifier: Apache-2.0
#include "formats/families/flat/parameter_list.h"

#include <map>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::flat {
namespace {

// The member of a safetensors header that describes no tensor.
constexpr std::string_view kHeaderMetadata = "__metadata__";

std::vector<std::int64_t> sizes_of(const Json& json) {
  const Json* const member = json.find("shape");
  const Json& said = member == nullptr ? json : *member;
  if (said.as_array() == nullptr) {
    throw Error(ErrorCode::kJson, cat("is ", json_kind(json),
                                      ", expected a list of sizes, or the name of an earlier "
                                      "parameter that it is tied to"));
  }
  std::vector<std::int64_t> sizes;
  std::int64_t numel = 1;
  for (const Json& size : *said.as_array()) {
    if (size.as_int() == nullptr || *size.as_int() < 0)
      throw Error(ErrorCode::kShape, "has a size that is not a number of elements");
    sizes.push_back(*size.as_int());
    if (__builtin_mul_overflow(numel, *size.as_int(), &numel))
      throw Error(ErrorCode::kShape, "has more than 2^63 - 1 elements");
  }
  return sizes;
}

}  // namespace

ParameterList parse_parameter_list(std::string_view text, std::string origin) {
  const Json json = parse_json(text);
  if (json.as_object() == nullptr)
    throw Error(ErrorCode::kJson,
                cat("is ", json_kind(json), ", expected an object: names to shapes"));
  ParameterList list{.origin = std::move(origin), .parameters = {}};
  std::map<std::string, std::vector<std::int64_t>> own;  // shapes of those that are not tied
  for (const auto& [name, said] : *json.as_object()) {
    if (name == kHeaderMetadata) continue;
    ListedParameter parameter{.name = name};
    in_context([&] { return quote(name, 200); },
               [&] {
                 if (said.as_string() == nullptr) {
                   parameter.shape = sizes_of(said);
                   own.emplace(name, parameter.shape);
                   return;
                 }
                 parameter.tied = *said.as_string();
                 const auto first = own.find(parameter.tied);
                 if (first == own.end()) {
                   throw Error(ErrorCode::kKey, cat("is tied to ", quote(parameter.tied, 200),
                                                    ", which has no shape before it"));
                 }
                 parameter.shape = first->second;
               });
    list.parameters.push_back(std::move(parameter));
  }
  if (list.parameters.empty()) throw Error(ErrorCode::kEmpty, "names no parameter");
  return list;
}

}  // namespace fsdp::formats::flat
