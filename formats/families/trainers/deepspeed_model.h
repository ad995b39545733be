// SPDX-License-Identifier: Apache-2.0
// Reads the `*_model_states.pt` files of a DeepSpeed checkpoint: the module's order, buffers, tied
// and frozen parameters, and the trainer's state beside them.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/families/torch/file_set.h"
#include "formats/families/trainers/deepspeed_names.h"

namespace fsdp::formats::deepspeed {

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
