// SPDX-License-Identifier: Apache-2.0
// Compares -k and --exclude with the existing keys: refuses globs that match nothing, or only part
// of their evident targets.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/state/model/index.h"
#include "formats/state/model/select.h"

namespace fsdp::cli {

// Note [a level or a module]
// `-k 'model.**'` means the model if its keys lie in a level of that name: "model" > "emb".  In a
// flat state dict, as many of Hugging Face's are, `model` is a module of the model ("model.emb"
// beside "lm_head"), and the same glob would leave out the rest of the model.  So a glob of that
// form whose front is a usual name of a level is refused there, unless --exclude or another -k
// decides about the rest.
class SelectionCheck {
 public:
  // Lifetime: `selection` outlives this.
  explicit SelectionCheck(const formats::KeySelection& selection);

  // Records an existing key.
  void see(const std::string& key);
  // Records all keys of an index, under the names that `name` returns.
  void see(const formats::Index& index,
           const std::function<std::string(const std::string&)>& name = {});

  // Throws: kNotFound naming a glob of -k that matches nothing, and what it may mean, or if nothing
  // is left; kUsage.
  // `where`: the checkpoint, for messages.
  void finish(const std::string& where) const;

 private:
  // A glob "front.**" whose front may be a level or a module.
  struct Level {
    std::string glob;
    std::string front;   // "model."
    std::string parent;  // "" or "app."
    bool is_module = false;
    std::uint64_t left_out = 0;  // parameters beside it that no glob selects
    std::string example;
  };
  void see_flat_parameter(const std::string& key, bool selected);

  const formats::KeySelection& selection_;
  std::vector<char> matched_;  // globs of -k
  std::vector<Level> levels_;
  std::vector<std::string> names_;  // some of the keys seen
  bool any_ = false;
};

// Does all of this for the keys of one checkpoint; does nothing without globs.
void check_selection(const formats::KeySelection& selection, const formats::Index& index,
                     const std::string& where);

}  // namespace fsdp::cli
