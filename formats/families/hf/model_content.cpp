// SPDX-License-Identifier: Apache-2.0
#include "formats/families/hf/model_content.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/families/hf/completeness.h"
#include "formats/families/hf/flat_models.h"
#include "formats/state/content/content.h"
#include "formats/state/content/loose_states.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/model/tensor_reader.h"

namespace fsdp::formats::hf {
namespace {

// The buffer for comparing two tensors; small, because small files allow little memory.
constexpr std::uint64_t kCompareBytes = 4U << 20U;

FoundModel model_at(const Value& content, const std::vector<StatePart>& parts,
                    const StatePart& part) {
  FoundModel found;
  found.place = joined(part.path);
  std::vector<Value::Entry> entries;
  const Value model = part.path.empty() ? content : *at_path(content, part.path);
  std::set<std::string> inside;  // members that are parts themselves
  for (const StatePart& other : parts) {
    if (other.path.size() == part.path.size() + 1 &&
        std::equal(part.path.begin(), part.path.end(), other.path.begin()))
      inside.insert(joined({other.path.back()}));
  }
  for (const auto& [key, value] : members_of(model)) {
    if (inside.contains(*key.as_string())) continue;
    if (tensor_number(value)) {
      entries.emplace_back(key, value);
    } else {
      ++found.values;
    }
  }
  found.tensors = Value::dict(std::move(entries));
  return found;
}

}  // namespace

FoundModel find_model(const Checkpoint& source, const Value& content, const std::string& place) {
  const std::vector<StatePart> parts = state_parts_of(content);
  std::vector<const StatePart*> models;
  std::string places;
  for (const StatePart& part : parts) {
    if (part.kind != PartKind::kModel) continue;
    const std::string at = joined(part.path);
    places += (places.empty() ? "" : ", ") + quote(at, 200);
    if (place.empty() || at == place) models.push_back(&part);
  }
  // A model beside others in one flat state dict.
  std::string below;
  for (const StatePart& part : parts) {
    const std::string at = part.path.empty() ? std::string() : joined(part.path) + ".";
    if (!models.empty() || part.kind != PartKind::kModel || !place.starts_with(at)) continue;
    const Value& all = part.path.empty() ? content : *at_path(content, part.path);
    below = place.substr(at.size());
    if (!members_of(tensors_below(all, below)).empty()) models.push_back(&part);
  }
  if (models.empty()) {
    throw Error(ErrorCode::kKey, cat(source.description().path, ": holds no model's state dict",
                                     place.empty() ? "" : " at " + quote(place, 200),
                                     places.empty() ? "" : "; there are " + places));
  }
  if (models.size() > 1) {
    throw Error(ErrorCode::kUnsupported,
                cat(source.description().path, ": holds several models, ", places),
                {Remedy::kChooseModel});
  }
  FoundModel found = model_at(content, parts, *models[0]);
  if (!below.empty()) {
    found.place = place;
    found.tensors = tensors_below(found.tensors, below);
  } else if (const std::vector<std::string> beside = flat_models(found.tensors); !beside.empty()) {
    SomeNames names;
    for (const std::string& name : beside)
      names.add(quote(found.place.empty() ? name : found.place + "." + name, 200));
    throw Error(
        ErrorCode::kUnsupported,
        cat(source.description().path, ": holds several models beside each other, ", names.text()),
        {Remedy::kChooseModel});
  }
  if (loose_state(found.tensors)) refuse_loose_states(source, content);
  return found;
}

std::vector<FoundModel> find_models(const Value& content, bool apart) {
  const std::vector<StatePart> parts = state_parts_of(content);
  std::vector<FoundModel> out;
  for (const StatePart& part : parts) {
    if (part.kind != PartKind::kModel) continue;
    FoundModel found = model_at(content, parts, part);
    const std::vector<std::string> beside =
        apart ? flat_models(found.tensors) : std::vector<std::string>();
    for (const std::string& name : beside) {
      out.push_back({found.place.empty() ? name : found.place + "." + name,
                     tensors_below(found.tensors, name), found.values});
    }
    if (beside.empty()) out.push_back(std::move(found));
  }
  return out;
}

Value renamed_tensors(const Value& tensors,
                      const std::function<std::string(const std::string&)>& rename) {
  std::vector<Value::Entry> entries;
  for (const auto& [key, value] : members_of(tensors))
    entries.emplace_back(Value::string(rename(*key.as_string())), value);
  return Value::dict(std::move(entries));
}

std::vector<std::string> names_of(const Value& tensors) {
  std::vector<std::string> names;
  for (const auto& [key, value] : members_of(tensors)) names.push_back(*key.as_string());
  return names;
}

NamedShapes shapes_of(const Value& tensors) {
  NamedShapes shapes;
  for (const auto& [key, value] : members_of(tensors)) {
    if (const auto tensor = dense_tensor(value))
      shapes.emplace_back(*key.as_string(), tensor->shape);
  }
  return shapes;
}

Value without_tied_head(const Checkpoint& source, const Value& tensors) {
  const Value* head = nullptr;
  const Value* embedding = nullptr;
  std::string name;
  for (const auto& [key, value] : members_of(tensors)) {
    if (*key.as_string() == kHead) head = &value;
    if (!is_embedding(*key.as_string())) continue;
    embedding = &value;
    name = *key.as_string();
  }
  if (head == nullptr || embedding == nullptr) return tensors;
  const TensorRef& left = *dense_tensor(*head)->storage->tensor;
  const TensorRef& right = *dense_tensor(*embedding)->storage->tensor;
  if (left.number != right.number) {
    const std::array<TargetPiece, 1> one = {reference_piece(source, left)};
    const std::array<TargetPiece, 1> other = {reference_piece(source, right)};
    bool same = dense_tensor(*head)->shape == dense_tensor(*embedding)->shape &&
                dense_tensor(*head)->dtype == dense_tensor(*embedding)->dtype;
    VisitOptions options;
    options.max_buffer_bytes = kCompareBytes;
    options.cancelled = [] { return interrupted(); };
    if (same) {
      visit_pairs(one, other, options, [&](const TensorBlockPair& pair) {
        same = same && std::memcmp(pair.left.data(), pair.right.data(), pair.left.size()) == 0;
      });
    }
    if (!same) {
      throw Error(ErrorCode::kMismatch,
                  cat(source.description().path, ": ", quote(kHead), " and ", quote(name),
                      " differ, and config.json ties them (tie_word_embeddings)"));
    }
  }
  std::vector<Value::Entry> kept;
  for (const auto& [key, value] : members_of(tensors)) {
    if (*key.as_string() != kHead) kept.emplace_back(key, value);
  }
  return Value::dict(std::move(kept));
}

std::string quantized_name(const Value& tensors) {
  for (const auto& [key, value] : members_of(tensors)) {
    const std::string& name = *key.as_string();
    const auto tensor = dense_tensor(value);
    if (tensor && (name.ends_with("_scale_inv") ||
                   (name.ends_with("_blocks") && tensor->dtype == DType::kUInt8)))
      return name;
  }
  return {};
}

DType main_dtype(const Value& tensors) {
  std::map<DType, std::uint64_t> bytes;
  for (const auto& [key, value] : members_of(tensors)) {
    const auto tensor = dense_tensor(value);
    if (tensor && is_floating(tensor->dtype)) {
      bytes[tensor->dtype] += numel_of(tensor->shape) * item_bytes(tensor->dtype);
    }
  }
  const auto most = std::ranges::max_element(bytes, [](const auto& a, const auto& b) {
    const bool a_wide = item_bytes(a.first) > 1;
    const bool b_wide = item_bytes(b.first) > 1;
    return a_wide == b_wide ? a.second < b.second : b_wide;
  });
  return most == bytes.end() ? DType::kFloat32 : most->first;
}

}  // namespace fsdp::formats::hf
