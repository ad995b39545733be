// SPDX-License-Identifier: Apache-2.0
#include "formats/families/dcp/sharding.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/buffer_names.h"
#include "formats/state/content/content.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats::dcp {
namespace {

// Replaces each tuple in a value by a name that stands for it, so that leaves_of does not take it
// apart.
class TupleHider {
 public:
  Value hide(const Value& value) {
    const bool sequence = value.kind() == ValueKind::kList;
    const auto entries = mapping_entries(value);
    if (value.kind() == ValueKind::kTuple) {
      Value name = Value::global("tuple", "tuple");
      originals_.emplace(name.identity(), value);
      return name;
    }
    if (!sequence && !entries) return value;
    if (const auto known = known_.find(value.identity()); known != known_.end())
      return known->second;
    Value out;
    if (entries) {
      std::vector<Value::Entry> hidden;
      hidden.reserve(entries->size());
      for (const auto& [key, child] : *entries) hidden.emplace_back(key, hide(child));
      out = Value::dict(std::move(hidden));
    } else {
      std::vector<Value> hidden;
      hidden.reserve(value.items().size());
      for (const Value& child : value.items()) hidden.push_back(hide(child));
      out = Value::list(std::move(hidden));
    }
    known_.emplace(value.identity(), out);
    originals_.emplace(out.identity(), value);
    return out;
  }
  Value original(const Value& value) const {
    const auto found = originals_.find(value.identity());
    return found != originals_.end() ? found->second : value;
  }

 private:
  std::unordered_map<const void*, Value> originals_;  // by the identity of their stand-ins
  std::unordered_map<const void*, Value> known_;
};

// Returns the name in "state.<name>.<slot>" or "param_groups.<name>.<option>"; nothing for other
// texts.
std::optional<std::string> name_within(std::string_view step) {
  for (const std::string_view head :
       {std::string_view("state."), std::string_view("param_groups.")}) {
    if (!step.starts_with(head)) continue;
    step.remove_prefix(head.size());
    const std::size_t dot = step.rfind('.');
    if (dot != std::string_view::npos) return std::string(step.substr(0, dot));
  }
  return std::nullopt;
}

const std::string* text_at(const KeyPath& path, std::size_t at) {
  return at < path.size() ? std::get_if<std::string>(&path[at]) : nullptr;
}

// Returns the parameter that an entry of an optimizer belongs to, by the entry's path within it.
std::optional<std::string> parameter_of(const StatePart& part, const KeyPath& path) {
  const std::string* first = text_at(path, part.path.size());
  if (first == nullptr) return std::nullopt;
  if (part.kind == PartKind::kFlattenedOptimizer) return name_within(*first);
  const std::string* second = text_at(path, part.path.size() + 1);
  if (*first != "state" || second == nullptr) return std::nullopt;
  return *second;
}

// Returns whether the tensor lies in more than one chunk.
bool is_cut(const TensorEntry& tensor) {
  std::size_t chunks = 0;
  for (std::size_t c = 0; c < tensor.chunks.size() && chunks < 2; ++c)
    chunks += volume(tensor.chunks.box(c)) != 0 ? 1U : 0U;
  return chunks > 1;
}

}  // namespace

std::vector<Leaf> entries_of(const Value& content) {
  const auto top = mapping_entries(content);
  if (!top) {
    throw Error(ErrorCode::kUnsupported,
                cat("the object is a ", kind_name(content.kind()),
                    ", but a folder of torch.distributed.checkpoint holds a dict"));
  }
  if (top->empty()) return {};
  TupleHider hider;
  std::vector<Leaf> entries = leaves_of(hider.hide(content));
  std::erase_if(entries, [](const Leaf& entry) {
    const auto members = mapping_entries(entry.value);
    return members && members->empty();
  });
  std::unordered_set<std::string_view> keys;
  for (Leaf& entry : entries) {
    entry.value = hider.original(entry.value);
    if (!keys.insert(entry.key).second) {
      throw Error(ErrorCode::kKey,
                  cat(quote(entry.key, 200), ": two paths of the state dict join to this key"));
    }
    const std::string special = special_tensor_text(entry.value);
    if (!special.empty()) {
      throw Error(ErrorCode::kUnsupported,
                  cat(quote(entry.key, 200), ": the tensor is ", special,
                      ", but a folder of torch.distributed.checkpoint holds only dense tensors"),
                  {Remedy::kExclude, entry.key});
    }
  }
  return entries;
}

ShardingRule::ShardingRule(const Checkpoint& source, const Value& content,
                           const std::vector<Leaf>& entries, ShardingChoice choice)
    : source_(source), choice_(std::move(choice)), parts_(state_parts_of(content)) {
  const auto& tensors = source.index().tensors;
  // DeepSpeed cuts flat tensors, regardless of the boundaries between parameters.
  shown_ = source.description().ranks > 1 && source.description().format != "deepspeed" &&
           std::ranges::any_of(tensors, is_cut);
  for (const Leaf& entry : entries) {
    const StatePart* part = part_of(entry.path);
    if (part == nullptr) continue;
    if (part->kind == PartKind::kModel) {
      const auto number = tensor_number(entry.value);
      if (!number) continue;
      const KeyPath rest(entry.path.begin() + static_cast<std::ptrdiff_t>(part->path.size()),
                         entry.path.end());
      parameters_.try_emplace(joined(rest), Parameter{*number, &entry});
    } else if (part->kind != PartKind::kOther) {
      learn_names(entry, *part);
    }
  }
  names_known_ = std::ranges::any_of(
      optimized_, [&](const std::string& name) { return parameters_.contains(name); });
  check_choice(entries);
}

// Returns the part with the longest path that is a prefix of `path`.
const StatePart* ShardingRule::part_of(const KeyPath& path) const {
  const StatePart* found = nullptr;
  for (const StatePart& part : parts_) {
    const bool within = part.path.size() <= path.size() &&
                        std::equal(part.path.begin(), part.path.end(), path.begin());
    if (within && (found == nullptr || part.path.size() > found->path.size())) found = &part;
  }
  return found;
}

void ShardingRule::learn_names(const Leaf& entry, const StatePart& part) {
  if (auto name = parameter_of(part, entry.path)) {
    if (const auto number = tensor_number(entry.value)) {
      const TensorEntry& state = source_.index().tensors[*number];
      const auto [largest, added] = largest_states_.emplace(*name, &state);
      if (!added && state.numel() > largest->second->numel()) largest->second = &state;
    }
    optimized_.insert(std::move(*name));
    return;
  }
  if (part.kind != PartKind::kOptimizer) return;
  const std::string* first = text_at(entry.path, part.path.size());
  if (first == nullptr || *first != "param_groups") return;
  const std::string* last = text_at(entry.path, entry.path.size() - 1);
  if (last != nullptr && (*last == "params" || last == first))
    learn_group_names(resolved(source_, entry.value));
}

// `value` is a list of names, or the groups themselves, which PyTorch before 2.4 keeps as one
// value.
void ShardingRule::learn_group_names(const Value& value) {
  for (const Value& item : value.items()) {
    if (const std::string* name = item.as_string()) {
      optimized_.insert(*name);
    } else if (const auto group = mapping_entries(item)) {
      for (const auto& [key, option] : *group) {
        if (key.as_string() != nullptr && *key.as_string() == "params") learn_group_names(option);
      }
    }
  }
}

bool ShardingRule::is_parameter(const std::string& name, DType dtype) const {
  if (!is_differentiable(dtype)) return false;
  if (optimized_.contains(name)) return true;
  if (!names_known_) return !is_buffer(name, dtype);
  const std::string_view last = std::string_view(name).substr(name.rfind('.') + 1);
  return last == "weight" || last == "bias";
}

bool ShardingRule::cuts_state(const std::string& parameter, const TensorEntry& state) const {
  const auto found = parameters_.find(parameter);
  if (found == parameters_.end()) {
    const auto largest = largest_states_.find(parameter);
    return is_differentiable(state.dtype) && largest != largest_states_.end() &&
           largest->second->shape == state.shape;
  }
  const TensorEntry& tensor = source_.index().tensors[found->second.tensor];
  return tensor.shape == state.shape && cuts(*found->second.entry);
}

bool ShardingRule::cuts(const Leaf& entry) const {
  const auto number = tensor_number(entry.value);
  if (!number) return false;
  const TensorEntry& tensor = source_.index().tensors[*number];
  if (tensor.shape.empty() || tensor.numel() == 0) return false;
  if (any_matches(choice_.replicate, entry.key)) return false;
  if (any_matches(choice_.shard, entry.key)) return true;
  if (shown_ && tensor.shape[0] > 1) return is_cut(tensor);
  const StatePart* part = part_of(entry.path);
  if (part != nullptr && part->kind != PartKind::kModel && part->kind != PartKind::kOther) {
    const auto parameter = parameter_of(*part, entry.path);
    return parameter && cuts_state(*parameter, tensor);
  }
  const std::size_t above = part == nullptr ? 0 : part->path.size();
  const KeyPath rest(entry.path.begin() + static_cast<std::ptrdiff_t>(above), entry.path.end());
  return is_parameter(joined(rest), tensor.dtype);
}

void ShardingRule::check_choice(const std::vector<Leaf>& entries) const {
  const auto check_list = [&](const std::vector<Glob>& globs, std::string_view list) {
    for (const Glob& glob : globs) {
      const bool meets = std::ranges::any_of(entries, [&](const Leaf& entry) {
        return tensor_number(entry.value) && glob.matches(entry.key);
      });
      if (!meets)
        throw Error(ErrorCode::kUsage, cat("glob ", quote(glob.text()), " of the tensors to ", list,
                                           " matches no tensor"));
    }
  };
  check_list(choice_.shard, "cut");
  check_list(choice_.replicate, "keep whole");
  if (choice_.shard.empty() || choice_.replicate.empty()) return;
  for (const Leaf& entry : entries) {
    if (any_matches(choice_.shard, entry.key) && any_matches(choice_.replicate, entry.key)) {
      throw Error(ErrorCode::kUsage,
                  cat(quote(entry.key, 200), ": is chosen both to be cut and to be kept whole"));
    }
  }
}

}  // namespace fsdp::formats::dcp
