// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/relaid_tensor.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string_view>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats {
namespace {

// Of objects that PyTorch writes, a dozen levels.
constexpr std::uint32_t kMaxTensorDepth = 100;

Error unsuited(std::string_view why) {
  return {ErrorCode::kUnsupported, cat("DeviceMesh: ", why)};
}

// Returns the state of an object with other values: a dict, or a pair of dicts (object, slots).
template <typename Edit>
Value with_attributes(const Value& state, const Edit& edit) {
  if (state.kind() == ValueKind::kTuple) {
    std::vector<Value> parts;
    for (const Value& part : state.items()) parts.push_back(with_attributes(part, edit));
    return Value::tuple(std::move(parts));
  }
  if (state.kind() != ValueKind::kDict) return state;
  std::vector<Value::Entry> entries;
  for (const auto& [key, value] : state.entries()) {
    const std::string* const name = key.as_string();
    entries.emplace_back(key, name == nullptr ? value : edit(*name, value));
  }
  return Value::dict(std::move(entries));
}

// Returns the numbers in the form of `like`: one integer, a list or a tuple.
Value numbers_like(const Value& like, std::span<const std::int64_t> numbers) {
  if (like.as_int()) return Value::integer(numbers[0]);
  std::vector<Value> items;
  for (const std::int64_t number : numbers) items.push_back(Value::integer(number));
  return like.kind() == ValueKind::kList ? Value::list(std::move(items))
                                         : Value::tuple(std::move(items));
}

bool counts_up(const Value& value) {
  const auto numbers = integers(value);
  std::int64_t next = 0;
  return numbers && std::ranges::all_of(*numbers, [&](std::int64_t n) { return n == next++; });
}

std::vector<std::int64_t> first_ranks(std::int64_t count) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), std::int64_t{0});
  return out;
}

}  // namespace

Value RelaidTensors::relaid(const Value& dtensor, const Value& local) {
  if (dtensor.depth() > kMaxTensorDepth)
    throw Error(ErrorCode::kLimitDepth, cat("DTensor: more than ", kMaxTensorDepth, " levels"));
  ObjectData object = *dtensor.as_object();
  const auto args = object.args.items();
  object.args =
      Value::tuple({args[0], args[1], changed(args[2]),
                    with_attributes(args[3], [&](const std::string& name, const Value& value) {
                      return name == "_local_tensor" ? local : changed(value);
                    })});
  return Value::object(std::move(object));
}

std::vector<Value> RelaidTensors::changed(std::span<const Value> items) {
  std::vector<Value> out;
  out.reserve(items.size());
  for (const Value& item : items) out.push_back(changed(item));
  return out;
}

Value RelaidTensors::changed(const Value& value) {
  if (value.identity() == nullptr) return value;
  const auto known = known_.find(value.identity());
  if (known != known_.end()) return known->second;
  Value out = made(value);
  known_.emplace(value.identity(), out);
  return out;
}

Value RelaidTensors::made(const Value& value) {
  if (value.kind() == ValueKind::kTuple) return Value::tuple(changed(value.items()));
  if (value.kind() == ValueKind::kList) return Value::list(changed(value.items()));
  const ObjectData* const from = value.as_object();
  if (from == nullptr) return value;
  if (class_name(value) == "DeviceMesh") return changed_mesh(*from);
  ObjectData to = *from;
  // The parts lie on the CPU, from where PyTorch loads them onto any device.
  to.args = is_call_of(value, "torch", "device") ? Value::tuple({Value::string("cpu")})
                                                 : Value::tuple(changed(from->args.items()));
  // PyTorch computes a hash that is None when it needs one; a saved one is that of another mesh.
  to.state = with_attributes(from->state, [&](const std::string& name, const Value& part) {
    return name == "_hash" ? Value() : changed(part);
  });
  return Value::object(std::move(to));
}

Value RelaidTensors::changed_mesh(const ObjectData& mesh) {
  ObjectData out = mesh;
  out.state = with_attributes(mesh.state, [&](const std::string& name, const Value& value) {
    return mesh_attribute(name, value);
  });
  return Value::object(std::move(out));
}

Value RelaidTensors::mesh_attribute(const std::string& name, const Value& value) {
  constexpr std::array<std::string_view, 3> kSame = {"_mesh_dim_names", "mesh_dim_names",
                                                     "_dim_group_names"};
  constexpr std::int64_t kStep = 1;
  if (name == "_hash") return {};
  // Nothing, or a word: the type of device, the thread.
  if (value.is_none() || value.as_bool() || value.as_string() != nullptr ||
      std::ranges::find(kSame, name) != kSame.end())
    return value;
  if (name == "_thread_id") return value;
  if (name == "_rank") return Value::integer(rank_);
  if (name == "_coordinate_on_dim") return numbers_like(value, std::span(&rank_, 1));
  if (name == "_layout" && value.as_object() != nullptr) {
    ObjectData layout = *value.as_object();
    layout.state = with_attributes(layout.state, [&](const std::string& part, const Value& old) {
      if (part == "shape") return numbers_like(old, std::span(&ranks_, 1));
      return part == "stride" ? numbers_like(old, std::span(&kStep, 1)) : old;
    });
    return Value::object(std::move(layout));
  }
  if (name == "_flatten_rank_map" || name == "_flatten_mesh_list") {
    if (!counts_up(value)) throw unsuited("does not hold all ranks of the job in their order");
    return numbers_like(value, first_ranks(ranks_));
  }
  if (name == "_rank_map" || name == "mesh") {
    const auto tensor = dense_tensor(value);
    if (tensor && (tensor->dtype == DType::kInt32 || tensor->dtype == DType::kInt64))
      return numbers_(tensor->dtype);
  }
  if (name == "_flatten_mapping" && value.entries().empty()) return value;
  // For each dimension: (tag, its ranks, the name of the group).
  if (name == "_dim_group_infos" && value.items().size() == 1) {
    std::vector<Value> info;
    for (const Value& part : value.items()[0].items())
      info.push_back(integers(part) ? numbers_like(part, first_ranks(ranks_)) : part);
    return Value::list({Value::tuple(std::move(info))});
  }
  if (name == "_root_mesh" || name == "_parent_mesh")
    throw unsuited(
        "is one dimension of a larger mesh, whose other dimensions are not known for "
        "another number of ranks");
  throw unsuited(cat("has the attribute ", quote(name),
                     ", of which fsdp-ckpt does not know what it is on another number of ranks"));
}

}  // namespace fsdp::formats
