// SPDX-License-Identifier: Apache-2.0
// Finds the parts of FSDP1's flat parameters in the files of ranks.
// Source: _local_post_state_dict_hook in torch/distributed/fsdp/_state_dict_utils.py and
// FlatParamHandle._use_sharded_views of PyTorch 2.11; docs/formats/fsdp1_local.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/flat/division.h"
#include "formats/state/content/state_tree.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::formats::flat {

// The elements of a flat parameter that a file holds: `count` of them from `begin` on.
struct FlatRun {
  std::uint32_t file = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  TensorValue view;  // of one dimension; element 0 is element `begin` of the flat parameter
};

struct FlatParameter {
  std::string key;     // in the model's state dict, as saved
  std::string module;  // whose parameters it joins, "blocks.0"; empty: the model itself
  DType dtype = DType::kFloat32;
  FlatSize size = {};
  std::vector<FlatRun> runs = {};      // by `begin`, one for each
  std::vector<FlatRun> replicas = {};  // further runs that must hold the same elements
};

// A parameter whose name is in the files beside the flat one (use_orig_params=True), as a view of
// the elements that a rank has of it.
struct NamedParameter {
  std::string name;
  std::size_t flat = 0;                   // its flat parameter
  std::map<std::uint32_t, FlatRange> in;  // elements of the flat parameter, by file; empty ones too
};

// A state dict with flat parameters.
struct FlatModel {
  // One of its keys, without wrappers.
  struct Member {
    enum class Kind { kFlat, kNamed, kOther };
    Kind kind = Kind::kOther;
    std::size_t number = 0;  // in `flats` or `named`
    std::string name;
    std::optional<std::vector<std::int64_t>> shape = {};  // of a tensor that is kOther
  };

  KeyPath place;  // of the state dict in the file's object
  std::vector<FlatParameter> flats;
  std::vector<NamedParameter> named;
  std::vector<Member> members;  // in the order of the first file

  // Returns the number of the flat parameter that a parameter of that name lies in, by its module;
  // nothing if there is none.
  std::optional<std::size_t> flat_of(std::string_view name) const;
};

// Returns the key without the names of the modules that FSDP, checkpoint_wrapper and torch.compile
// put around others.
std::string without_wrappers(std::string_view key);

// Returns whether the key of a state dict is that of a flat parameter: `_flat_param`, `flat_param`
// (before PyTorch 2.0), alone or behind a module.
bool is_flat_key(std::string_view key);

// Returns whether a leaf is a rank's part of a flat parameter: a ShardedTensor or a tensor of one
// dimension under such a key.
bool is_flat_leaf(const Leaf& leaf);

// The leaves of the file of a rank.
struct RankLeaves {
  std::uint32_t file = 0;
  std::int64_t rank = 0;
  std::vector<Leaf> leaves;
};

// Takes the parts of flat parameters, and the views into them, out of the leaves of all files, and
// returns the models that they form.
// Lifetime: the values of the leaves outlive the result.
// Throws: kDtype, kShape, kMismatch naming a key that files have different; what sharded_value
// throws.
std::vector<FlatModel> take_flat_parameters(std::vector<RankLeaves>& files);

}  // namespace fsdp::formats::flat
