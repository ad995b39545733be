// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/parameters.h"

#include <algorithm>
#include <charconv>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::map {
namespace {

// Returns the member at a dotted path; nullptr if it is missing or null.
const Json* config_member(const Json& config, std::string_view path) {
  const Json* at = &config;
  while (at != nullptr && !path.empty()) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    at = at->find(path.substr(0, dot));
    path.remove_prefix(std::min(path.size(), dot + 1));
  }
  return at == nullptr || at->is_null() ? nullptr : at;
}

}  // namespace

std::pair<std::string, std::int64_t> parse_parameter(std::string_view text) {
  const std::size_t equals = text.find('=');
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const bool ok = equals != std::string_view::npos && equals != 0 && [&] {
    const auto [at, error] = std::from_chars(text.data() + equals + 1, end, value);
    return error == std::errc() && at == end;
  }();
  if (!ok) {
    throw Error(ErrorCode::kUsage,
                cat(quote(text), " is not NAME=NUMBER with a whole number, such as n_heads=32"));
  }
  return {std::string(text.substr(0, equals)), value};
}

ParameterValues::ParameterValues(const Rules& rules, const GivenParameters& given,
                                 const Shapes& shapes)
    : rules_(rules), given_(given), shapes_(shapes) {
  for (const auto& [name, value] : given.values) {
    try {
      rules.parameter(name);
    } catch (const Error& error) {
      throw error.in(rules.file);
    }
  }
  if (!given.config || rules.model_types.empty()) return;
  const Json* type = config_member(*given.config, "model_type");
  if (type == nullptr || type->as_string() == nullptr) return;
  const auto& types = rules.model_types;
  if (std::ranges::find(types, *type->as_string()) != types.end()) return;
  std::string expected;
  for (const std::string& one : types) expected += (expected.empty() ? "" : " or ") + quote(one);
  throw Error(ErrorCode::kKey,
              cat(given.config_name, ": has model_type ", quote(*type->as_string()),
                  ", and the map ", rules.file, " is for ", expected));
}

std::string ParameterValues::place(const Parameter& parameter) const {
  return cat(rules_.file, ": line ", parameter.line, ": parameter ", quote(parameter.name));
}

std::int64_t ParameterValues::operator()(const std::string& name) {
  const auto known = known_.find(name);
  if (known != known_.end()) return known->second;
  const Parameter& parameter = rules_.parameter(name);
  if (!open_.insert(name).second)
    throw Error(ErrorCode::kUsage, place(parameter) + " depends on itself");
  const std::int64_t value = found(parameter);
  open_.erase(name);
  known_.emplace(name, value);
  return value;
}

std::int64_t ParameterValues::found(const Parameter& parameter) {
  const auto given = given_.values.find(parameter.name);
  if (given != given_.values.end()) return given->second;
  if (const auto value = from_config(parameter)) {
    compare_with_names(parameter, *value);
    return *value;
  }
  if (const auto value = from_shapes(parameter)) return *value;
  if (const auto value = from_names(parameter)) return *value;
  if (parameter.value) {
    return parameter.value->value([this](const std::string& name) { return (*this)(name); });
  }
  std::string names;
  for (const std::string& name : parameter.config)
    names += (names.empty() ? ", which a config.json has as " : " or ") + quote(name);
  throw Error(ErrorCode::kUsage, cat(place(parameter), " has no value", names),
              {names.empty() ? Remedy::kGiveNumber : Remedy::kGiveNumberOrConfig, parameter.name});
}

std::optional<std::int64_t> ParameterValues::from_config(const Parameter& parameter) const {
  if (!given_.config) return std::nullopt;
  for (const std::string& path : parameter.config) {
    const Json* member = config_member(*given_.config, path);
    if (member == nullptr) continue;
    if (member->as_int() == nullptr) {
      throw Error(ErrorCode::kJson, cat(given_.config_name, ": ", quote(path), " is ",
                                        json_kind(*member), ", expected a whole number"));
    }
    return *member->as_int();
  }
  return std::nullopt;
}

void ParameterValues::compare_with_names(const Parameter& parameter, std::int64_t said) {
  std::optional<std::int64_t> counted = from_names(parameter);
  const auto counts = [this](const std::string& name) {
    return !rules_.parameter(name).count.empty();
  };
  if (!counted && parameter.value && std::ranges::any_of(parameter.value->names(), counts))
    counted = parameter.value->value([this](const std::string& name) { return (*this)(name); });
  // A part of a model may have no such names.
  if (!counted || *counted == 0 || *counted == said) return;
  throw Error(ErrorCode::kMismatch,
              cat(place(parameter), " is ", said, " in ", given_.config_name, ", but ", *counted,
                  " by the names of the tensors; --set ", parameter.name, "=N says which"));
}

std::optional<std::int64_t> ParameterValues::from_names(const Parameter& parameter) const {
  if (parameter.count.empty()) return std::nullopt;
  return std::ranges::count_if(shapes_, [&](const auto& tensor) {
    return std::ranges::any_of(parameter.count, [&](const Pattern& pattern) {
      return pattern.match(tensor.first).has_value();
    });
  });
}

std::optional<std::int64_t> ParameterValues::from_shapes(const Parameter& parameter) const {
  if (!parameter.key) return std::nullopt;
  for (const auto& [name, shape] : shapes_) {
    if (!parameter.key->match(name)) continue;
    const auto rank = static_cast<std::int64_t>(shape.size());
    const std::int64_t dim = parameter.dim < 0 ? parameter.dim + rank : parameter.dim;
    if (dim < 0 || dim >= rank) {
      throw Error(ErrorCode::kShape, cat(place(parameter), " is dimension ", parameter.dim, " of ",
                                         quote(name, 200), ", whose shape is ", shape_text(shape)));
    }
    return shape[static_cast<std::size_t>(dim)];
  }
  return std::nullopt;
}

}  // namespace fsdp::formats::map
