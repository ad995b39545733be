// SPDX-License-Identifier: Apache-2.0
#include "libfsdp/internal/state/broadcast_value.h"

#include <vector>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "libfsdp/agree.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/devices.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/state/state_skeleton.h"

namespace fsdp::internal {
namespace {

// Adds the tensors that do not travel as text, in the order of the value.
void find_tensors(StateValue& value, std::vector<at::Tensor*>& found) {
  if (at::Tensor* const tensor = value.as_tensor()) {
    if (!travels_as_text(*tensor)) found.push_back(tensor);
  } else if (StateList* const list = value.as_list()) {
    for (StateValue& item : *list) find_tensors(item, found);
  } else if (StateTuple* const tuple = value.as_tuple()) {
    for (StateValue& item : tuple->items) find_tensors(item, found);
  } else if (StateDict* const dict = value.as_dict()) {
    for (auto& [key, item] : dict->entries()) find_tensors(item, found);
  }
}

std::vector<at::Tensor*> tensors_of(StateValue& value) {
  std::vector<at::Tensor*> found;
  find_tensors(value, found);
  return found;
}

// Sends the bytes of `own` (null on other ranks) and returns a CPU tensor like `like`.
at::Tensor sent(const std::shared_ptr<ProcessGroup>& group, const at::Tensor* own,
                const at::Tensor& like, int src, const std::string& what) {
  at::Tensor result = own != nullptr ? own->detach().cpu().contiguous().clone()
                                     : at::empty(like.sizes(), like.options().device(at::kCPU));
  if (result.numel() == 0) return result;
  at::Tensor moved = result.view(-1).view(at::kByte).to(collective_device(*group));
  broadcast(group, moved, src, what).wait();
  return moved.cpu().view(like.scalar_type()).view(like.sizes());
}

}  // namespace

StateValue broadcast_value(const std::shared_ptr<ProcessGroup>& group, const StateValue& value,
                           int src, const std::string& what) {
  FSDP_CHECK(src >= 0 && src < group->size(), what, ": expected a rank below ", group->size(),
             ", found ", src);
  const bool own = group->rank() == src;
  std::string text;
  agree(group, what, [&] {
    if (own) text = skeleton_text(value);
  });
  const auto texts = all_gather_text(group, text, what);
  StateValue result = skeleton_of(texts[static_cast<std::size_t>(src)]);
  StateValue given = own ? value : StateValue();
  const std::vector<at::Tensor*> sources = tensors_of(given);
  const std::vector<at::Tensor*> targets = tensors_of(result);
  for (std::size_t i = 0; i < targets.size(); ++i)
    *targets[i] = sent(group, own ? sources[i] : nullptr, *targets[i], src, what);
  return result;
}

}  // namespace fsdp::internal
