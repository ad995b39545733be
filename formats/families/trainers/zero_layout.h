// SPDX-License-Identifier: Apache-2.0
// How DeepSpeed's ZeRO lays parameters out in flat tensors, for any number of ranks, as its
// runtime/zero/stage_1_and_2.py and stage3.py compute it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/state/content/object_fields.h"

namespace fsdp::formats::deepspeed {

constexpr const char* kOptimizer = "optimizer_state_dict";

struct FlatParameter {
  std::string name;
  std::int64_t numel = 0;
  std::int64_t begin = 0;  // stages 1, 2: in the flat group
};
using FlatParameters = std::vector<FlatParameter>;

// Throws: kMetaType.
std::span<const Value::Entry> entries_of(const Value& mapping);

// Returns a mapping with other values.
template <typename Edit>
Value with_entries(const Value& mapping, const Edit& edit) {
  std::vector<Value::Entry> entries;
  for (const auto& [key, value] : entries_of(mapping)) {
    const std::string* const name = key.as_string();
    entries.emplace_back(key, name == nullptr ? value : edit(*name, value));
  }
  return mapping_like(mapping, std::move(entries));
}

// The layout of a tag folder, which is given for the ranks of its files and computed for others.
class ZeroLayout {
 public:
  // `models` and `optimizers`: the files of the tag folder, by rank; `ranks`: that they are of.
  // Throws: kMetaType, kUnsupported if the layout depends on more than the number of ranks, or the
  // rules do not give the lengths that the files have; what open_torch_save throws.
  ZeroLayout(std::filesystem::path tag, int stage, std::int64_t ranks,
             std::vector<std::string> models, std::vector<std::string> optimizers);

  // Returns 3, or 1, which stands for 2, too: both are laid out alike.
  int stage() const { return stage_; }
  // Returns the parameters of each group of the optimizer.
  const std::vector<FlatParameters>& groups() const { return groups_; }
  // Returns the key of the weights in full precision.
  std::string weights_key() const;
  // Returns the parameters of each flat tensor: those of a group, or in stage 3 of a sub-group.
  // `owners`, if given, gets the group of each.
  std::vector<FlatParameters> flat_groups(std::int64_t ranks,
                                          std::vector<std::size_t>* owners = nullptr) const;
  // Returns the number of elements that each rank has of a flat tensor, padding included.
  std::int64_t partition_numel(const FlatParameters& group, std::size_t g,
                               std::int64_t ranks) const;
  // Returns the elements of a rank's partition without what fills up the flat group.
  std::int64_t lean_numel(const FlatParameters& group, std::size_t g, std::int64_t rank,
                          std::int64_t ranks) const;

  // Returns a member of an object in the file `name`.  Throws: kMetaType.
  const Value& needed(const Value& mapping, const std::string& key, const std::string& name) const;
  // Throws: kUnsupported.
  [[noreturn]] void refuse(const std::string& name, const std::string& why) const;

 private:
  void read();
  // Stage 3: 'param_shapes' lists sub-groups; joins those of each group of the optimizer.
  void join_sub_groups(const Value& optimizer);
  // Checks that the rules give the lengths that the files have.
  void check_sizes(const Value& zero) const;

  std::filesystem::path tag_;
  int stage_;
  std::int64_t ranks_;
  std::vector<std::string> models_;
  std::vector<std::string> optimizers_;
  std::int64_t sub_group_numel_;
  std::vector<FlatParameters> groups_;
  std::vector<std::int64_t> group_numel_;  // stages 1, 2: with what lies between parameters
};

}  // namespace fsdp::formats::deepspeed
