// SPDX-License-Identifier: Apache-2.0
// scatter_full_optim_state_dict: sends rank 0's whole tensors one by one, as rows, to all ranks.
#include <string>
#include <unordered_map>
#include <utility>

#include <ATen/Functions.h>

#include "libfsdp/fully_sharded.h"
#include "libfsdp/internal/comm/collectives.h"
#include "libfsdp/internal/comm/errors.h"
#include "libfsdp/internal/comm/own_work.h"
#include "libfsdp/internal/engine/engine.h"
#include "libfsdp/internal/state/optim_targets.h"
#include "libfsdp/internal/state/state_skeleton.h"
#include "libfsdp/internal/units/gather_rows.h"
#include "libfsdp/optim_state_dict.h"

namespace fsdp {
using namespace internal;
namespace {

class Scatter {
 public:
  Scatter(const ShardedModule& model, const torch::optim::Optimizer& optimizer)
      : root_(*model.units().front()), first_(is_first_rank(root_)) {
    for (const auto& group : optim_targets(model, optimizer)) {
      for (const OptimTarget& target : group) {
        for (const OptimPiece& piece : target.pieces) {
          for (const std::string& name : piece.names) parameters_.emplace(name, piece.parameter);
        }
      }
    }
  }

  StateDict run(const StateDict& given) {
    StateDict result = std::move(skeleton_of(from_first(given)).dict());
    for (auto& [key, entry] : result.at("state").dict().entries()) {
      if (entry.as_dict() == nullptr) continue;
      for (auto& [name, value] : entry.dict().entries()) {
        const at::Tensor* const like = value.as_tensor();
        if (like == nullptr || travels_as_text(*like)) continue;
        const StateValue* source = nullptr;
        if (first_) source = &given.at("state").dict().at(key).dict().at(name);
        value = scattered(text_of(key), text_of(name), *like, source);
      }
    }
    return result;
  }

 private:
  // Sends first to the first rank of every replica, then inside each replica.
  template <typename Send>
  void to_all(const Send& send) const {
    if (root_.sharding->device_mesh) return send(root_.sharding->device_mesh->all_ranks());
    for (const auto& group : {root_.sharding->mesh.replicate, root_.sharding->mesh.shard}) {
      if (group && group->size() > 1) send(group);
    }
  }

  // Returns the skeleton of the first rank's dict; if that fails, every rank throws.
  std::string from_first(const StateDict& given) const {
    std::string text;
    if (first_) {
      try {
        given.at("state").dict();
        text = skeleton_text(given);
      } catch (const c10::Error& error) {
        text = std::string("!") + error.what_without_backtrace();
      }
    }
    to_all([&](const auto& group) {
      text = all_gather_text(group, text, "scatter_full_optim_state_dict").front();
    });
    FSDP_CHECK(text.front() != '!',
               "scatter_full_optim_state_dict failed on rank 0: ", text.substr(1));
    return text;
  }

  // Returns what this rank needs of a tensor that has the shape and dtype of `like`.
  StateValue scattered(const std::string& parameter, const std::string& name,
                       const at::Tensor& like, const StateValue* source) const {
    const auto found = parameters_.find(parameter);
    // Errors about unknown parameters come later, from the function that takes the result.
    if (found == parameters_.end()) return like;
    const Parameter* const sharded = found->second;
    if (sharded != nullptr && like.sizes() != at::IntArrayRef(sharded->layout.whole_shape()))
      return like;
    const auto options = like.options().device(root_.compute_device);
    const at::Tensor whole = source != nullptr
                                 ? source->as_tensor()->to(options.device()).contiguous()
                                 : at::empty(like.sizes(), options);
    if (whole.numel() != 0) {
      to_all([&](const auto& group) {
        broadcast(group, whole, 0, "broadcast of " + name + " of '" + parameter + "'").wait();
      });
    }
    if (sharded == nullptr) return whole;
    const Unit& unit = *sharded->unit;
    return sharded_tensor(
        *sharded,
        rows_of(block_of(whole, sharded->layout), sharded->layout, unit.sharding->rank()).clone());
  }

  const Unit& root_;
  const bool first_;
  std::unordered_map<std::string, const Parameter*> parameters_;  // null: not sharded
};

}  // namespace

StateDict scatter_full_optim_state_dict(const StateDict& full_optim_state_dict,
                                        const ShardedModule& model,
                                        torch::optim::Optimizer& optimizer) {
  const OwnWork own;
  const StateDict sharded = Scatter(model, optimizer).run(full_optim_state_dict);
  return optim_state_dict_to_load(model, optimizer, sharded);
}

}  // namespace fsdp
