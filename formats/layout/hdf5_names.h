// SPDX-License-Identifier: Apache-2.0
// Where the keys of a state dict stand in an HDF5 file.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "formats/container/hdf5_description.h"
#include "formats/model/index.h"

namespace fsdp::formats::hdf5 {

// The names that a path's steps become: each is cut at its dots, and what no link can be called is
// escaped ("%2F" for "/", "%25" for "%", "%00" for NUL, "%" for an empty name, %XX for bytes that
// are no UTF-8).  So no name begins with a dot, and the hidden group's cannot come up.
Path names_of(const KeyPath& path);

// Gives out places for tensors and values so that no dataset stands where a group has to be.
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
  Path split(const KeyPath& path) const;

  std::set<Path> tensors_;
  std::set<Path> groups_;
  std::set<Path> datasets_;
  std::set<Path> attributes_;
};

}  // namespace fsdp::formats::hdf5
