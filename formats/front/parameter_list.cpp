// SPDX-License-Identifier: Apache-2.0
#include "formats/front/parameter_list.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "formats/front/open.h"
#include "formats/state/content/content.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/model/box.h"
#include "formats/state/rewrite/parameter_order.h"
#include "formats/state/rewrite/rekey.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

// Names and shapes of a million parameters.
constexpr std::uint64_t kMaxParameterListBytes = 256U << 20U;

std::shared_ptr<flat::ParameterList> read_json(const fs::path& path) {
  const std::string text = read_text(*file_at(path), kMaxParameterListBytes);
  auto list = std::make_shared<flat::ParameterList>(
      flat::parse_parameter_list(text, escape(path.native())));
  std::vector<std::string> names;
  for (const flat::ListedParameter& one : list->parameters) names.push_back(one.name);
  list->ordered = in_module_order(names);
  return list;
}

// Returns the dimensions of a tensor from the one with the largest stride to the one with the
// smallest; empty if it is row-major.
std::vector<std::size_t> memory_order_of(const Checkpoint& checkpoint, std::size_t number) {
  const auto value = checkpoint.tensor_value(number);
  const auto tensor = value ? dense_tensor(*value) : std::nullopt;
  if (!tensor || tensor->strides == row_major_strides(tensor->shape)) return {};
  std::vector<std::size_t> order(tensor->shape.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return tensor->strides[a] > tensor->strides[b]; });
  std::vector<std::int64_t> laid;
  std::vector<std::int64_t> strides;
  for (const std::size_t d : order) {
    laid.push_back(tensor->shape[d]);
    strides.push_back(tensor->strides[d]);
  }
  // Dimensions of one element have any stride.
  const std::vector<std::int64_t> dense = row_major_strides(laid);
  for (std::size_t d = 0; d < laid.size(); ++d) {
    if (laid[d] > 1 && strides[d] != dense[d]) return {};  // a part of a larger tensor
  }
  return std::ranges::is_sorted(order) ? std::vector<std::size_t>() : order;
}

std::shared_ptr<flat::ParameterList> read_model(const fs::path& path, const OpenOptions& options) {
  const auto checkpoint = open_checkpoint(path, options);
  const Value content = content_of(*checkpoint);
  const auto model = model_of(content);
  if (!model)
    throw Error(ErrorCode::kKey,
                escape(path.native()) + ": holds no model's state dict, or several");
  auto list = std::make_shared<flat::ParameterList>();
  list->origin = escape(path.native());
  // Other programs' HDF5 files sort names.
  const bool kept = keeps_order(*checkpoint) && checkpoint->description().format != "hdf5";
  list->ordered = order_of_model(*model, list->origin, kept).certain;
  std::map<std::size_t, std::string> first;  // names by the number of their tensor
  const auto members = mapping_entries(*model);
  for (const auto& [key, value] : *members) {
    const auto number = tensor_number(value);
    if (key.as_string() == nullptr || !number) continue;
    flat::ListedParameter one{.name = *key.as_string()};
    one.shape = checkpoint->index().tensors[*number].shape;
    one.memory_order = memory_order_of(*checkpoint, *number);
    const auto [at, fresh] = first.emplace(*number, one.name);
    if (!fresh) one.tied = at->second;
    list->parameters.push_back(std::move(one));
  }
  return list;
}

}  // namespace

std::shared_ptr<const flat::ParameterList> read_parameter_list(const fs::path& path,
                                                               const OpenOptions& options) {
  const std::string name = path.filename();
  if (!name.ends_with(".json") || name.ends_with(".index.json")) return read_model(path, options);
  return in_context([&] { return escape(path.native()); },
                    [&] { return std::shared_ptr<const flat::ParameterList>(read_json(path)); });
}

}  // namespace fsdp::formats
