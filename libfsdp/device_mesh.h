// SPDX-License-Identifier: Apache-2.0
// Ranks in several dimensions, each with a name, as PyTorch's init_device_mesh().
//
//   const fsdp::DeviceMesh mesh(fsdp::init_process_group(), {{"dp", 2}, {"tp", 4}});
//   Llama model(config, mesh["tp"]);   // tensor_parallel.h
//   fsdp::FullyShardOptions options;
//   options.mesh = mesh["dp"];
//   auto sharded = fsdp::fully_shard(model, options);
//
// Experts have a mesh of their own over the same ranks.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libfsdp/process_group.h"

namespace fsdp {

struct MeshDim {
  std::string name;
  int size = 1;
};

// Copies are the same mesh.
class DeviceMesh {
 public:
  // Collective over `group`.  Its ranks fill the mesh in order; those that differ in the last
  // dimension alone follow each other.  Makes a group for each dimension.
  // Throws: c10::Error if the sizes do not multiply to the group's; for a name that is empty or
  // stands twice.
  DeviceMesh(const std::shared_ptr<ProcessGroup>& group, const std::vector<MeshDim>& dims);

  // Returns the mesh of some dimensions, in that order, or of none, among the ranks that share this
  // one's place in the others.  Throws: c10::Error naming the dimensions if there is none of that
  // name.
  DeviceMesh operator[](const std::string& name) const;
  DeviceMesh select(const std::vector<std::string>& names) const;

  std::size_t ndim() const noexcept { return dims_.size(); }
  const std::string& name(std::size_t dim) const;
  int size(std::size_t dim) const;
  // This rank's place.
  int coordinate(std::size_t dim) const;
  const std::shared_ptr<ProcessGroup>& group(std::size_t dim) const;
  // Of a mesh of one dimension.  Throws: c10::Error for others.
  const std::shared_ptr<ProcessGroup>& group() const;

  // The mesh that it is a part of, and all of that one's ranks.
  DeviceMesh root() const;
  const std::shared_ptr<ProcessGroup>& all_ranks() const noexcept;
  bool is_part_of_same(const DeviceMesh& other) const noexcept { return root_ == other.root_; }
  // Returns this rank's number among those that share its place in this mesh, by their places in
  // the root's other dimensions, and how many there are.
  std::pair<int, int> copy() const;

  // Returns "dp=2, tp=4".
  std::string text() const;

 private:
  struct Root;
  DeviceMesh(std::shared_ptr<const Root> root, std::vector<std::size_t> dims);

  std::shared_ptr<const Root> root_;
  std::vector<std::size_t> dims_;  // of the root
};

}  // namespace fsdp
