// SPDX-License-Identifier: Apache-2.0
// Plans the place of every part of a checkpoint in a torch.distributed.checkpoint folder that is
// about to be written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/families/dcp/folder_plan.h"
#include "formats/families/dcp/sharding.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::dcp {

// Called for each value after it is read; may throw to refuse it.
using ValueCheck = std::function<void(const std::string& key, const Value& value)>;

class SourcePlan : public FolderPlan {
 public:
  // `layout`: of the folder (see CheckpointDescription); a layout with a state file keeps its
  // values there.  Lifetime: the source outlives the plan.  Throws: the errors of plan_dcp_output.
  SourcePlan(const Checkpoint& source, const Value& content, std::string_view layout,
             std::int64_t world_size, const ShardingChoice& choice, const ValueCheck& on_value);

  // Returns the entries of the file beside .metadata that holds what no rank shards; empty if there
  // is no such file.
  const std::vector<Value::Entry>& state_file() const { return state_file_; }
  // Returns the number of values of the checkpoint, those in that file or in one item included.
  std::size_t value_count() const { return value_count_; }

 private:
  void add_tensor(std::size_t entry, const ShardingRule& rule);
  void choose_ranks();
  // Moves what belongs into the state file or the item of the common state to `state_file_`, and
  // objects of ranks to `objects`; returns the rest of the content.
  Value without_common(const Value& content, const ValueCheck& on_value,
                       std::vector<Leaf>& objects);
  void add_to_state_file(const std::string& key, const Value& value, const ValueCheck& on_value);

  const Checkpoint& source_;
  std::vector<Value::Entry> state_file_;
  std::size_t value_count_ = 0;
};

}  // namespace fsdp::formats::dcp
