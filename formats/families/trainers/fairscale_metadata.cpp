// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/fairscale_metadata.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/state_tree.h"
#include "formats/state/model/box.h"

namespace fsdp::formats::fairscale {
namespace {

// Trainers put the metadata one or two levels below the file's object.
constexpr std::size_t kMaxDepth = 8;

[[noreturn]] void fail(const std::string& why) {
  throw Error(ErrorCode::kMetaType, "FairScale's shard metadata: " + why);
}

const Value& needed(const Value& mapping, std::string_view name) {
  const Value* found = member(mapping, name);
  if (found == nullptr) fail(cat("have no ", quote(std::string(name))));
  return *found;
}

std::string text_of(const Value& value, const char* what) {
  if (value.as_string() == nullptr) fail(cat(what, " is not text"));
  return *value.as_string();
}

std::string below(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

Backing read_backing(const std::string& path, const std::string& name, const Value& said) {
  Backing backing{below(path, name), {}, 0, 0, false};
  const auto names = needed(said, "names").items();
  const auto shapes = needed(said, "shapes").items();
  const auto numels = needed(said, "numels").items();
  if (names.size() != shapes.size() || names.size() != numels.size())
    fail(cat(quote(backing.key, 200), " has different numbers of shapes and names"));
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto shape = shape_of(shapes[i]);
    const auto numel = numels[i].as_int();
    if (!shape || !numel || static_cast<std::uint64_t>(*numel) != numel_of(*shape))
      fail(cat(quote(backing.key, 200), " has a shape that does not fit its elements"));
    if (__builtin_add_overflow(backing.numel, *numel, &backing.numel)) {
      throw Error(ErrorCode::kOverflow,
                  cat(quote(backing.key, 200), ": has more than 2^63 - 1 elements"));
    }
    backing.originals.push_back({below(path, text_of(names[i], "a name")), *shape, *numel});
  }
  backing.padding = needed(said, "padding").as_int().value_or(-1);
  if (backing.padding < 0) fail(cat(quote(backing.key, 200), " has no valid padding"));
  return backing;
}

std::optional<Shard> search(const Value& at, std::vector<const Value*>& way) {
  const auto entries = mapping_entries(at);
  if (!entries || way.size() == kMaxDepth) return std::nullopt;
  way.push_back(&at);
  for (const auto& [key, value] : *entries) {
    if (is_metadata(value)) return Shard{way, &value, nullptr};
  }
  for (const auto& [key, value] : *entries) {
    if (auto found = search(value, way)) return found;
  }
  way.pop_back();
  return std::nullopt;
}

}  // namespace

bool is_metadata(const Value& value) {
  const Value* units = member(value, "param_metadata");
  const Value* buffers = member(value, "buffer_names");
  return units != nullptr && buffers != nullptr && units->kind() == ValueKind::kList &&
         buffers->kind() == ValueKind::kList && !units->items().empty() &&
         member(units->items()[0], "fsdp_path") != nullptr;
}

Metadata read_metadata(const Value& value) {
  Metadata metadata;
  for (const Value& unit : needed(value, "param_metadata").items()) {
    const std::string path = text_of(needed(unit, "fsdp_path"), "'fsdp_path'");
    const auto params = mapping_entries(needed(unit, "params"));
    if (!params) fail("'params' is not a dict");
    for (const auto& [name, said] : *params) {
      Backing backing = read_backing(path, text_of(name, "the name of a parameter"), said);
      const Value* own = member(unit, "no_broadcast_optim_state");
      backing.own = own != nullptr && own->as_bool().value_or(false);
      metadata.backings.push_back(std::move(backing));
    }
    const Value* shared = member(unit, "shared_param_info");
    if (shared == nullptr) continue;
    for (const Value& pair : shared->items()) {
      if (pair.items().size() != 2) fail("'shared_param_info' holds other values than pairs");
      metadata.tied.emplace_back(below(path, text_of(pair.items()[0], "a tied name")),
                                 below(path, text_of(pair.items()[1], "a tied name")));
    }
  }
  for (const Value& name : needed(value, "buffer_names").items())
    metadata.buffers.push_back(text_of(name, "the name of a buffer"));
  return metadata;
}

Weights weights_of(const Value& mapping) {
  Weights weights;
  const auto entries = mapping_entries(mapping);
  if (!entries) return weights;
  for (const auto& [key, value] : *entries) {
    if (key.as_string() != nullptr) weights.emplace(*key.as_string(), &value);
  }
  return weights;
}

bool has_weights(const Value& mapping, const Metadata& metadata) {
  const Weights weights = weights_of(mapping);
  return std::ranges::all_of(metadata.backings,
                             [&](const Backing& backing) { return weights.contains(backing.key); });
}

std::optional<Shard> find_shard(const Value& root) {
  if (is_metadata(root)) return Shard{{}, &root, nullptr};
  std::vector<const Value*> way;
  auto shard = search(root, way);
  if (!shard) return shard;
  const Metadata metadata = read_metadata(*shard->metadata);
  const auto beside = mapping_entries(*shard->way.back());
  for (const auto& [key, value] : *beside) {
    if (&value != shard->metadata && has_weights(value, metadata)) {
      shard->weights = &value;
      break;
    }
  }
  return shard;
}

bool is_optimizer(const Value& value) {
  const Value* state = member(value, "state");
  const Value* groups = member(value, "param_groups");
  if (state == nullptr || groups == nullptr || !mapping_entries(*state) ||
      groups->kind() != ValueKind::kList || groups->items().empty())
    return false;
  return std::ranges::all_of(groups->items(), [](const Value& group) {
    const Value* params = member(group, "params");
    return params != nullptr && params->kind() == ValueKind::kList;
  });
}

std::string why_not_joined(const Value& optimizer, std::size_t count) {
  const auto groups = member(optimizer, "param_groups")->items();
  if (groups.size() != 1) return cat("it has ", groups.size(), " parameter groups");
  const auto params = member(groups[0], "params")->items();
  if (params.size() != count) {
    return cat("it is of ", params.size(), " parameters, and the metadata are of ", count);
  }
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i].as_int() != static_cast<std::int64_t>(i))
      return "its parameters are not numbered";
  }
  const auto states = mapping_entries(*member(optimizer, "state"));
  for (const auto& [key, state] : *states) {
    const auto number = key.as_int();
    if (!number || *number < 0 || static_cast<std::uint64_t>(*number) >= count ||
        !mapping_entries(state))
      return "it has a state of a parameter that it does not list";
  }
  return {};
}

std::vector<const Value*> states_of(const Value& optimizer, std::size_t count) {
  std::vector<const Value*> states(count, nullptr);
  const auto entries = mapping_entries(*member(optimizer, "state"));
  for (const auto& [key, state] : *entries)
    states[static_cast<std::size_t>(*key.as_int())] = &state;
  return states;
}

std::vector<std::size_t> numbers_in_order(const Metadata& metadata, const Value& weights) {
  std::unordered_map<std::string_view, std::size_t> places;
  const auto entries = mapping_entries(weights);
  for (std::size_t i = 0; i < entries->size(); ++i) {
    if (const std::string* key = (*entries)[i].first.as_string()) places.emplace(*key, i);
  }
  std::vector<std::size_t> order(metadata.backings.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return places.at(metadata.backings[a].key) < places.at(metadata.backings[b].key);
  });
  std::vector<std::size_t> numbers(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) numbers[order[i]] = i;
  return numbers;
}

Value names_of(const Metadata& metadata) {
  std::vector<Value> names;
  for (const Backing& backing : metadata.backings) {
    for (const Original& original : backing.originals)
      names.push_back(Value::string(original.name));
  }
  return Value::list(std::move(names));
}

}  // namespace fsdp::formats::fairscale
