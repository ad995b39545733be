// SPDX-License-Identifier: Apache-2.0
// What the `*_model_states.pt` files of a DeepSpeed checkpoint say: the module's order, buffers,
// tied and frozen parameters, and what the trainer keeps beside them.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/torch/file_set.h"
#include "formats/trainers/deepspeed_names.h"

namespace fsdp::formats::deepspeed {

class ModelFiles : public TorchFileSet {
 protected:
  explicit ModelFiles(Directory opened) : TorchFileSet(std::move(opened)) {}

  [[noreturn]] void fail(ErrorCode code, std::uint32_t file, const std::string& why) const;
  const Value& root(std::uint32_t file) const { return torch(file).root; }
  // The model file of the lowest rank, which speaks for all of them.  Requires: there is one.
  std::uint32_t model_file() const { return models_.begin()->second; }
  const Value& model_root() const { return root(model_file()); }
  // Throws: kMetaType where the file holds no dict 'module'; what add_file throws.
  void add_model_file(const StateFile& file);

  // The model in the module's own order, under `model`.  `trained` adds the parameter `source`
  // under the key `name` and says whether there is one; tied weights are asked for by the name
  // that the checkpoint has them under.  What is not trained is the model file's, in the type it
  // is saved in.  Returns the names that were looked at.
  // Throws: what adding throws.
  std::set<std::string> add_module(
      const std::function<bool(const std::string& name, const std::string& source)>& trained);
  // The names of 'buffer_names'.
  std::set<std::string> buffer_names() const;
  // The groups' options, with the names of the parameters in place of the flat tensors' numbers;
  // nothing where `groups` is no list of as many groups.
  void add_param_groups(const Value* groups, std::uint32_t file,
                        const std::vector<std::vector<std::string>>& names);
  // What of the model file is neither weights nor what describes how they lie.
  void add_trainer_state();
  std::optional<std::string> version() const;

  std::map<std::int64_t, std::uint32_t> models_;  // file by rank
  std::int64_t ranks_ = 0;
  bool cut_ = false;  // stage 3: what is not trained is cut over the ranks too

 private:
  bool add_frozen(const std::string& name, const std::string& source);
};

}  // namespace fsdp::formats::deepspeed
