// SPDX-License-Identifier: Apache-2.0
// Plans the place of every part of a checkpoint in a torch.distributed.checkpoint folder that is
// about to be written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/dcp/folder_plan.h"
#include "formats/dcp/sharding.h"
#include "formats/pickle/value.h"

namespace fsdp::formats::dcp {

// Called for each value after it is read; may throw to refuse it.
using ValueCheck = std::function<void(const std::string& key, const Value& value)>;

class SourcePlan : public FolderPlan {
 public:
  // Lifetime: the source outlives the layout.  Throws: like plan_dcp_output.
  SourcePlan(const Checkpoint& source, const Value& content, std::int64_t world_size,
             const ShardingChoice& choice, const ValueCheck& on_value);

  // The entries of Lightning's meta.pt, key by key; empty for other folders.
  const std::vector<Value::Entry>& lightning_meta() const { return lightning_meta_; }
  bool is_lightning() const { return lightning_; }

 private:
  void read_value(std::size_t entry, const ValueCheck& on_value);
  void add_tensor(std::size_t entry, const ShardingRule& rule);
  void choose_ranks();
  bool is_lightning_meta(const Leaf& entry) const;

  const Checkpoint& source_;
  bool lightning_ = false;
  std::vector<Value::Entry> lightning_meta_;
};

}  // namespace fsdp::formats::dcp
