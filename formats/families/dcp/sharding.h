// SPDX-License-Identifier: Apache-2.0
// Decides which parts of a nested state dict become entries of a torch.distributed.checkpoint
// folder, and which tensors FSDP would cut over the ranks.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/content/state_parts.h"
#include "formats/state/content/state_tree.h"
#include "formats/state/model/select.h"

namespace fsdp::formats::dcp {

// Returns the entries of `content` by the rule of PyTorch 2.4 and later: mappings are always taken
// apart; lists are if they hold a tensor, a mapping, or a list that is taken apart; tuples never
// are.  An empty mapping leaves no entry: with one, a loader whose state dict also has an empty
// mapping there would take the folder for one of PyTorch before 2.4, and miss what lists hold.
// Throws: kKey if two paths join to one key; kUnsupported if the root is not a mapping, and for
// tensors that are more than a view over a storage; the errors of leaves_of.
std::vector<Leaf> entries_of(const Value& content);

// The caller's choices, which override the rule, as globs over keys (select.h).
struct ShardingChoice {
  std::vector<Glob> shard;
  std::vector<Glob> replicate;
};

// Note [which tensors are cut]
// FSDP cuts parameters and the optimizer states of their elements, and leaves buffers whole.  A
// folder of several ranks shows which is which: a tensor of more than one row that lies in one
// chunk was not cut.  For other sources (and those in which DeepSpeed cut flat tensors), and for
// tensors of one row, dtype and name decide:
// - Integers and booleans are buffers.
// - Tensors that an optimizer names are parameters.
// - If an optimizer names parameters of the model, other floating tensors are frozen parameters if
//   they are called weight or bias, else buffers.  If none does, floating tensors are parameters
//   except for the usual names of buffers.
// - A state of an optimizer is cut if its parameter is cut and has the same shape; without the
//   parameter, if none of its other states is larger: tables of quantized states are whole.
// Tensors without dimensions or elements are never cut.
//
// Wrong guesses do not affect correctness: PyTorch loads every layout at every rank count.
class ShardingRule {
 public:
  // `entries` are those of `content`.  Lifetime: the source and the entries outlive the rule.
  // Throws: kUsage for a glob of `choice` that matches no tensor, and for a tensor that both lists
  // match; the errors of Checkpoint::value for an optimizer's groups.
  ShardingRule(const Checkpoint& source, const Value& content, const std::vector<Leaf>& entries,
               ShardingChoice choice);
  ShardingRule(const Checkpoint& source, const Value& content, std::vector<Leaf>&& entries,
               ShardingChoice choice) = delete;
  // Returns whether the tensor that `entry` stands for is cut along dimension 0.
  bool cuts(const Leaf& entry) const;

 private:
  struct Parameter {
    std::size_t tensor;  // in the index
    const Leaf* entry;
  };
  const StatePart* part_of(const KeyPath& path) const;
  void learn_names(const Leaf& entry, const StatePart& part);
  void learn_group_names(const Value& value);
  bool is_parameter(const std::string& name, DType dtype) const;
  bool cuts_state(const std::string& parameter, const TensorEntry& state) const;
  void check_choice(const std::vector<Leaf>& entries) const;

  const Checkpoint& source_;
  ShardingChoice choice_;
  std::vector<StatePart> parts_;
  bool shown_ = false;                                     // the source shows which tensors are cut
  std::unordered_set<std::string> optimized_;              // names in optimizers
  bool names_known_ = false;                               // ... of which some are the model's
  std::unordered_map<std::string, Parameter> parameters_;  // of the model, by name
  // The state with the most elements of each parameter.
  std::unordered_map<std::string, const TensorEntry*> largest_states_;
};

}  // namespace fsdp::formats::dcp
