// SPDX-License-Identifier: Apache-2.0
// Reads the files of a ZeRO checkpoint: their ranks, their parameters, and the flat tensors with
// the weights in full precision.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/trainers/deepspeed_model.h"
#include "formats/families/trainers/zero_partitions.h"

namespace fsdp::formats::deepspeed {

class ZeroFiles : public ModelFiles {
 protected:
  // Reads every file except its storages, and compares stages and rank counts.
  // Throws: kUnsupported, kMetaType, kShardMissing, kRank, kKey, kOverflow; what add_file throws.
  ZeroFiles(std::shared_ptr<const Folder> opened, const std::vector<StateFile>& files);

  // Returns 'optimizer_state_dict' of an optimizer file.
  const Value& zero_state(std::uint32_t file) const;
  // Returns the weights in full precision, by rank.  Throws: kMetaType, kType.
  FlatGroupsByRank master_weights() const;

  std::map<std::int64_t, std::uint32_t> optimizers_;  // files by rank
  std::int64_t stage_ = 0;
  std::map<std::string, Parameter> parameters_;
  std::vector<std::vector<std::string>> group_names_;  // names of each group's parameters, in order

  // Adds a finding if the flat tensors hold more or less than the parameters: the tensors were then
  // made from other names and shapes.
  void check_sizes(const FlatGroupsByRank& weights);

 private:
  void note_size(const std::string& what, std::int64_t expected, std::int64_t found);
  void refuse_other_layouts(const std::vector<StateFile>& files) const;
  void add_optimizer_file(const StateFile& file);
  void read_stages();
  void note_missing();
  void read_parameters();
  std::int64_t advanced(std::int64_t offset, std::int64_t count) const;
  std::optional<FlatGroups> flat_groups(std::uint32_t file, std::string_view name) const;

  std::vector<std::int64_t> group_numel_;  // stages 1, 2: of each group's parameters and gaps
  std::int64_t rank_numel_ = 0;            // stage 3: of each rank's groups
};

}  // namespace fsdp::formats::deepspeed
