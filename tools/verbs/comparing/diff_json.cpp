// SPDX-License-Identifier: Apache-2.0
// The JSON of `diff`.
#include <utility>

#include "formats/bytes/base/json.h"
#include "formats/bytes/base/json_writer.h"
#include "tools/text/value_text.h"
#include "tools/verbs/comparing/diff_report.h"

namespace fsdp::cli {
namespace {

using formats::Json;

Json names_json(const std::vector<std::string>& names) {
  return Json::Array(names.begin(), names.end());
}

// Adds the names on the other side, if a map leads there.
void add_names(Json::Object& object, const std::string& key, const Comparison& found) {
  if (!found.way) return;
  const auto names = found.way->names.find(key);
  if (names != found.way->names.end()) object.emplace_back("names", names_json(names->second));
}

const char* side_word(std::size_t side) {
  return side == 0 ? "a" : "b";
}

Json way_json(const std::optional<ExportWay>& way) {
  if (!way) return {};
  Json::Array rounded;
  for (const auto& [dtypes, tensors] : way->rounded) {
    rounded.emplace_back(Json::Object{{"from", std::string(formats::torch_name(dtypes.first))},
                                      {"to", std::string(formats::torch_name(dtypes.second))},
                                      {"tensors", tensors}});
  }
  return Json::Object{{"origin", side_word(way->origin)},
                      {"model_a", way->models[0]},
                      {"model_b", way->models[1]},
                      {"prefixes_a", names_json(way->prefixes[0])},
                      {"prefixes_b", names_json(way->prefixes[1])},
                      {"map", text_or_null(way->map)},
                      {"keys_of", side_word(way->named_by)},
                      {"tied", text_or_null(way->tied)},
                      {"beside_a", way->beside[0]},
                      {"beside_b", way->beside[1]},
                      {"rounded", std::move(rounded)}};
}

Json difference_json(const Difference& difference, const Comparison& found) {
  Json::Object object{{"what", kind_word(difference.kind)},
                      {"key", difference.key},
                      {"a", text_or_null(difference.a)},
                      {"b", text_or_null(difference.b)}};
  if (difference.kind == DifferenceKind::kOnlyA || difference.kind == DifferenceKind::kOnlyB)
    object.emplace_back("nearest", text_or_null(difference.hint));
  if (difference.kind == DifferenceKind::kValue) object.emplace_back("where", difference.where);
  add_names(object, difference.key, found);
  return object;
}

Json place_json(std::uint64_t at, const ComparedTensor& tensor) {
  const std::vector<std::int64_t> place = tensor.place_of(at);
  return Json::Array(place.begin(), place.end());
}

void add_norms(Json::Object& object, const Change& change) {
  const auto number = [&](double norm) { return change.numbers ? Json(norm) : Json(); };
  object.emplace_back("norm_a", number(change.left.root()));
  object.emplace_back("norm_change", number(change.apart.root()));
  object.emplace_back("relative", number(change.relative().value_or(0)));
  object.emplace_back("unbounded", change.unbounded);
}

Json tensor_json(const ComparedTensor& tensor, const Change& change, const Comparison& found) {
  const formats::TensorDifference& figures = tensor.figures;
  Json::Object object{
      {"what", kind_word(DifferenceKind::kTensor)},
      {"key", tensor.key},
      {"a", std::string(formats::torch_name(tensor.a))},
      {"b", std::string(formats::torch_name(tensor.b))},
      {"elements", figures.count},
      {"unequal", figures.unequal},
      {"different", figures.different},
      {"first", place_json(figures.first, tensor)},
      {"max_abs", figures.max_abs},
      {"max_abs_at", figures.max_abs == 0 ? Json() : place_json(figures.max_abs_at, tensor)},
      {"max_rel", figures.max_rel},
      {"max_ulp", figures.max_ulp ? Json(*figures.max_ulp) : Json()}};
  add_norms(object, change);
  object.emplace_back("nan_a", figures.nan_left);
  object.emplace_back("nan_b", figures.nan_right);
  add_names(object, tensor.key, found);
  return object;
}

Json group_json(const Change& change) {
  Json::Object object{{"name", change.name},           {"tensors", change.tensors},
                      {"changed", change.changed},     {"elements", change.elements},
                      {"different", change.different}, {"max_abs", change.max_abs}};
  add_norms(object, change);
  return object;
}

Json tolerance_json(const DiffOptions& options) {
  const formats::Tolerance& tolerance = options.tolerance;
  Json::Object object{{"exact", tolerance.exact}, {"close", options.close}};
  // --close has a tolerance for each dtype, so there is no single number.
  const auto number = [&](bool given, double value) {
    return tolerance.exact || (options.close && !given) ? Json() : Json(value);
  };
  object.emplace_back("atol", number(options.has_atol, tolerance.atol));
  object.emplace_back("rtol", number(options.has_rtol, tolerance.rtol));
  object.emplace_back("ulp", tolerance.ulp ? Json(*tolerance.ulp) : Json());
  object.emplace_back("nan_equal", tolerance.nan_equal);
  object.emplace_back("ignore_dtype", options.ignore_dtype);
  object.emplace_back("ignore_values", options.ignore_values);
  return object;
}

}  // namespace

void print_diff_json(const DiffOptions& options, const Comparison& found,
                     const std::vector<Change>& tensors, ChangeUnit unit,
                     const std::vector<Change>& groups, formats::JsonWriter& json) {
  Json::Object counts;
  for (const DifferenceKind kind : kDifferenceKinds)
    counts.emplace_back(kind_word(kind), found.count(kind));
  json.begin_object().member("schema", "fsdp-ckpt/diff/1");
  json.member("a", options.common.path).member("b", options.other);
  json.member("format_a", found.formats[0]).member("format_b", found.formats[1]);
  json.member("same", found.same()).member("tolerance", tolerance_json(options));
  json.member("tensors", found.compared.size()).member("values", found.values);
  json.member("bytes", found.bytes).member("unchecked_bytes", found.unchecked_bytes);
  json.member("within_tolerance", found.within).member("through", way_json(found.way));
  json.member("no_way", text_or_null(found.no_way)).member("counts", std::move(counts));
  if (unit != ChangeUnit::kTensor) {
    json.member("by", unit_word(unit)).key("groups").begin_array();
    for (const Change& group : groups) json.value(group_json(group));
    json.end_array();
  }
  json.key("differences").begin_array();
  for (const Difference& difference : found.differences)
    json.value(difference_json(difference, found));
  for (const Change& change : tensors)
    json.value(tensor_json(found.compared[change.tensor], change, found));
  json.end_array().end_object();
}

}  // namespace fsdp::cli
