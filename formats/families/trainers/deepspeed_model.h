// SPDX-License-Identifier: Apache-2.0
// The files of a DeepSpeed checkpoint: their names, the rules by which ZeRO cuts parameters into
// flat partitions, and what `*_model_states.pt` hold.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/files/listing.h"
#include "formats/families/torch/file_set.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats::deepspeed {

// A checkpoint is a tag folder, and the text file `latest` beside it that names it.

// One `*_model_states.pt` or `*_optim_states.pt`.
struct StateFile {
  std::string name;
  bool optimizer = false;
  std::optional<std::int64_t> rank;  // data parallel; nothing if one file belongs to all ranks
  std::int64_t model_rank = 0;       // tensor parallel
  bool other = false;                // file of a pipeline's layers, or of experts
};

// Parses `name`; returns nothing if it is not such a file.
std::optional<StateFile> state_file(std::string_view name);

// Returns the state files of a folder, by rank.
std::vector<StateFile> state_files(const Folder& folder);

// Returns the members of the folder except tag folders, files that name them, and DeepSpeed's own
// programs.
std::vector<std::string> beside_tags(const Folder& folder);

// Returns the folder within `folder` that the text file `file` names; nothing if there is no such
// file, or the file names no folder.
std::optional<std::string> named_folder(const Folder& folder, const std::string& file);

// Returns `folder` if it is a tag folder, or the tag folder that its `latest` names; nothing if it
// is neither.
std::optional<std::filesystem::path> tag_folder(const Listing& folder);

// Returns `folder` if it is a universal checkpoint, or the one that its `latest_universal` names; a
// `latest` beside that file takes precedence, since training resumes from there.
std::optional<std::filesystem::path> universal_folder(const Listing& folder);

struct Parameter {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
  std::size_t group = 0;
  std::int64_t begin = 0;  // stages 1, 2: in the group's flat tensor; 3: in each rank's groups
};

// The flat tensors of one kind of one rank: one per group.
struct FlatGroups {
  std::uint32_t file = 0;
  std::vector<TensorValue> tensors;  // of one dimension
};
using FlatGroupsByRank = std::map<std::int64_t, FlatGroups>;

// Elements begin to end of a flattened parameter, found in `tensor` from its element `from` on.
struct FlatRun {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::uint32_t file = 0;
  const TensorValue* tensor = nullptr;
  std::int64_t from = 0;
};

// Returns the number of elements in each rank's part of a parameter in stage 3: all parts have the
// same length, and the last one is padded.
std::int64_t piece_numel(std::int64_t numel, std::int64_t ranks);
// Returns the beginning of the part of `rank`; `numel` if the rank has none.
std::int64_t piece_begin(std::int64_t numel, std::int64_t piece, std::int64_t rank);

// Returns the runs of a parameter in stages 1 and 2.  Each group is one flat tensor, cut into equal
// partitions; padding at its end may be missing.  Missing ranks leave a gap.  `partition`: elements
// of a partition, if no rank but the last is there; else 0.  Lifetime: the runs point into `ranks`.
std::vector<FlatRun> runs_by_group(const Parameter& parameter, const FlatGroupsByRank& ranks,
                                   std::int64_t partition = 0);

// Returns the runs of a parameter in stage 3.  Each parameter is cut separately; its pieces lie at
// the same place in every rank's groups, which are joined.
std::vector<FlatRun> runs_by_parameter(const Parameter& parameter, const FlatGroupsByRank& ranks,
                                       std::int64_t rank_count);

// Reads the model files: the module's order, buffers, tied and frozen parameters, and the trainer's
// state beside them.
class ModelFiles : public TorchFileSet {
 protected:
  explicit ModelFiles(std::shared_ptr<const Folder> opened) : TorchFileSet(std::move(opened)) {}

  [[noreturn]] void fail(ErrorCode code, std::uint32_t file, const std::string& why) const;
  const Value& root(std::uint32_t file) const { return torch(file).root; }
  // Returns the model file of the lowest rank, which represents all of them.  Requires: there is
  // one.
  std::uint32_t model_file() const { return models_.begin()->second; }
  const Value& model_root() const { return root(model_file()); }
  // Throws: kMetaType if the file holds no dict 'module'; what add_file throws.
  void add_model_file(const StateFile& file);

  // Adds the model in the module's own order, under `model`.  `trained` adds the parameter `source`
  // under the key `name`, and returns whether that parameter exists; tied weights are requested by
  // their name in the checkpoint.  Untrained tensors come from the model file, in their saved type.
  // Returns the names that were examined.
  // Throws: what adding throws.
  std::set<std::string> add_module(
      const std::function<bool(const std::string& name, const std::string& source)>& trained);
  // Returns the names of 'buffer_names'.
  std::set<std::string> buffer_names() const;
  // Adds the groups' options, with the names of the parameters in place of the flat tensors'
  // numbers; adds nothing if `groups` is not a list of equally many groups.
  void add_param_groups(const Value* groups, std::uint32_t file,
                        const std::vector<std::vector<std::string>>& names);
  // Adds the values of the model file that are neither weights nor descriptions of their layout.
  void add_trainer_state();
  std::optional<std::string> version() const;

  std::map<std::int64_t, std::uint32_t> models_;  // files by rank
  std::int64_t ranks_ = 0;
  bool cut_ = false;  // stage 3: untrained tensors are cut over the ranks too

 private:
  bool add_frozen(const std::string& name, const std::string& source);
};

}  // namespace fsdp::formats::deepspeed
