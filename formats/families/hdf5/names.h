// SPDX-License-Identifier: Apache-2.0
// The places of a state dict's keys in an HDF5 file.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "formats/families/hdf5/description.h"
#include "formats/state/model/index.h"

namespace fsdp::formats::hdf5 {

// Returns the names of a path's steps.  There are at most 64; the last one then holds the rest with
// its dots.  Each step is split at its dots, and text that a link's name cannot hold is escaped
// ("%2F" for "/", "%25" for "%", "%00" for NUL, "%" for an empty name, %XX for bytes that are not
// UTF-8).  So no name begins with a dot, and the hidden group's name cannot occur.
Path names_of(const KeyPath& path);

// Assigns places to tensors and values so that a dataset never takes the place of a group.
//
// If the tensors need more than 1000 groups plus two for each tensor, all paths stay joined: such
// names are probably hostile.  Each value adds two to the groups that are left; when none are left,
// the paths of values stay joined too.
//
// A path below a tensor's own path (`a.b` if `a` is a tensor) keeps its rest joined: dataset `a.b`
// beside dataset `a`.  A place that is taken already gets "#2", "#3", ... after its name.
class Places {
 public:
  // Takes all paths of tensors, before the first place is requested.
  explicit Places(const std::vector<KeyPath>& tensors);
  Path dataset(const KeyPath& path);
  // Returns the group, then the attribute's name.
  Path attribute(const KeyPath& path);

 private:
  // A name below another one.
  struct Node {
    std::map<std::string, std::unique_ptr<Node>> children;
    bool is_tensor = false;
    bool is_group = false;
    bool is_dataset = false;
    std::unordered_set<std::string> attributes;
    std::unordered_map<std::string, std::size_t> copies;  // the next number after a name
  };
  static Node& child(Node& node, const std::string& name);
  Path split(const KeyPath& path) const;
  template <typename Taken>
  static std::string free_name(Node& group, const std::string& name, const Taken& taken);

  std::size_t groups_left_;
  bool are_joined_ = false;
  Node keys_;    // the tensors' own names
  Node places_;  // the names in the file
};

}  // namespace fsdp::formats::hdf5
