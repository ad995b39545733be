// SPDX-License-Identifier: Apache-2.0
// Where the keys of a state dict stand in an HDF5 file.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "formats/hdf5/description.h"
#include "formats/model/index.h"

namespace fsdp::formats::hdf5 {

// The names that a path's steps become, 64 at most, the last of which then holds what is left with
// its dots: each step is cut at its dots, and what no link can be called is
// escaped ("%2F" for "/", "%25" for "%", "%00" for NUL, "%" for an empty name, %XX for bytes that
// are no UTF-8).  So no name begins with a dot, and the hidden group's cannot come up.
Path names_of(const KeyPath& path);

// Gives out places for tensors and values so that no dataset stands where a group has to be.
//
// Where tensors alone would make more than 1000 groups and two for each of them, all paths stay
// joined: their names were made for that.  So do those of values once they have made as many.
//
// A path below a tensor's own path (`a.b` where `a` is a tensor) keeps its rest joined: dataset
// `a.b` beside dataset `a`.  A place that is taken already gets "#2", "#3", ... behind its name.
class Places {
 public:
  // All paths of tensors, before the first place is asked for.
  explicit Places(const std::vector<KeyPath>& tensors);
  Path dataset(const KeyPath& path);
  // The group, then the attribute's name.
  Path attribute(const KeyPath& path);

 private:
  // A name below another one.
  struct Node {
    std::map<std::string, std::unique_ptr<Node>> children;
    bool is_tensor = false;
    bool is_group = false;
    bool is_dataset = false;
    std::unordered_set<std::string> attributes;
    std::unordered_map<std::string, std::size_t> copies;  // the next number behind a name
  };
  static Node& child(Node& node, const std::string& name);
  Path split(const KeyPath& path) const;
  template <typename Taken>
  static std::string free_name(Node& group, const std::string& name, const Taken& taken);

  std::size_t groups_left_;
  bool are_joined_ = false;
  Node keys_;    // the tensors' own names
  Node places_;  // what stands in the file
};

}  // namespace fsdp::formats::hdf5
