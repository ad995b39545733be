// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/megatron/form.h"

#include <utility>

#include "formats/changes/arrays/references.h"
#include "formats/changes/megatron/module_state.h"
#include "formats/state/content/content.h"
#include "formats/state/content/state_tree.h"

namespace fsdp::formats::megatron {

Form form_of(const CheckpointDescription& description) {
  const std::string& layout = description.layout;
  if (layout == "megatron" || layout == "megatron-0.19") return Form::kTorchDist;
  if (layout == "fsdp_dtensor") return Form::kFsdpDtensor;
  return Form::kStateDict;
}

Reformed reformed(const Checkpoint& source, const Value& content, Form from, Form to) {
  arrays::References references(source);
  ModuleState state = from == Form::kTorchDist     ? read_torch_dist(source, content, references)
                      : from == Form::kFsdpDtensor ? read_fsdp_dtensor(source, content, references)
                                                   : read_state_dict(source, content, references);
  // Makes the tensors in all other entries refer to the new checkpoint too.
  for (auto& [key, value] : state.others) {
    value = with_leaves(value, [&](const Leaf& leaf) -> std::optional<Value> {
      const auto number = tensor_number(leaf.value);
      if (!number) return leaf.value;
      return references.shared(leaf.path, references.source_array(*number));
    });
  }
  const std::string& path = source.description().path;
  Reformed out;
  out.left_out = state.left_out;
  out.content = to == Form::kTorchDist     ? torch_dist_content(state, path, references)
                : to == Form::kFsdpDtensor ? fsdp_dtensor_content(state, path, references)
                                           : state_dict_content(state, path, references);
  out.checkpoint = references.take();
  return out;
}

}  // namespace fsdp::formats::megatron
