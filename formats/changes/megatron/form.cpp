// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/megatron/form.h"

#include <algorithm>
#include <utility>

#include "formats/changes/arrays/computed_tensors.h"
#include "formats/changes/megatron/module_state.h"
#include "formats/changes/megatron/names.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats::megatron {

Form form_of(const CheckpointDescription& description) {
  const std::string& layout = description.layout;
  if (layout == "megatron" || layout == "megatron-0.19") return Form::kTorchDist;
  if (layout == "fsdp_dtensor") return Form::kFsdpDtensor;
  return Form::kStateDict;
}

bool has_buckets(const Value& content) {
  return std::ranges::any_of(members_of(content), [](const Value::Entry& entry) {
    return entry.first.as_string() != nullptr && is_bucket(*entry.first.as_string());
  });
}

bool has_buckets(const Index& index) {
  return std::ranges::any_of(index.tensors,
                             [](const TensorEntry& tensor) { return is_bucket(tensor.key); });
}

Reformed reformed(const Checkpoint& source, const Value& content, Form from, Form to,
                  const ReformOptions& options) {
  auto tensors = std::make_unique<arrays::ComputedTensors>(source);
  arrays::ComputedTensors& made = *tensors;
  ModuleState state = from == Form::kTorchDist
                          ? read_torch_dist(source, content, options.names, made)
                      : from == Form::kFsdpDtensor ? read_fsdp_dtensor(source, content, made)
                                                   : read_state_dict(source, content, made);
  // Makes the tensors in all other entries refer to the new checkpoint too.
  for (auto& [key, value] : state.others) {
    value = with_leaves(value, [&](const Leaf& leaf) -> std::optional<Value> {
      const auto number = tensor_number(leaf.value);
      if (!number) return leaf.value;
      return made.shared(leaf.path, made.source_array(*number));
    });
  }
  const std::string& path = source.description().path;
  Reformed out;
  out.left_out = state.left_out;
  out.content = to == Form::kTorchDist ? torch_dist_content(state, path, options.layers_apart, made)
                : to == Form::kFsdpDtensor ? fsdp_dtensor_content(state, path, made)
                                           : state_dict_content(state, path, made);
  out.checkpoint = std::move(tensors);
  return out;
}

}  // namespace fsdp::formats::megatron
