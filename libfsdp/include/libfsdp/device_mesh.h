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

// Copies refer to the same mesh.
class DeviceMesh {
 public:
  // Collective over `group`.  Ranks fill the mesh in order; the last dimension runs fastest.  Makes
  // a group for each dimension.
  // Throws: c10::Error if the sizes do not multiply to the group's; for an empty or repeated name.
  DeviceMesh(const std::shared_ptr<ProcessGroup>& group, const std::vector<MeshDim>& dims);

  // Returns the mesh of the named dimensions (or of none), in that order, over the ranks that share
  // this rank's coordinates in the other dimensions.  Throws: c10::Error listing the dimensions if
  // a name is unknown.
  DeviceMesh operator[](const std::string& name) const;
  DeviceMesh select(const std::vector<std::string>& names) const;

  std::size_t ndim() const noexcept { return dims_.size(); }
  const std::string& name(std::size_t dim) const;
  int size(std::size_t dim) const;
  // Returns this rank's coordinate.
  int coordinate(std::size_t dim) const;
  const std::shared_ptr<ProcessGroup>& group(std::size_t dim) const;
  // Returns the group of a mesh of one dimension.  Throws: c10::Error for other meshes.
  const std::shared_ptr<ProcessGroup>& group() const;

  // The mesh that this one was selected from, and the group of all its ranks.
  DeviceMesh root() const;
  const std::shared_ptr<ProcessGroup>& all_ranks() const noexcept;
  bool is_part_of_same(const DeviceMesh& other) const noexcept { return root_ == other.root_; }
  // Returns this rank's number among the ranks with the same coordinates in this mesh, ordered by
  // their coordinates in the root's other dimensions, and the number of these ranks.
  std::pair<int, int> copy() const;

  // Returns "dp=2, tp=4".
  std::string text() const;

 private:
  struct Root;
  DeviceMesh(std::shared_ptr<const Root> root, std::vector<std::size_t> dims);

  std::shared_ptr<const Root> root_;
  std::vector<std::size_t> dims_;  // indices into the root's
};

}  // namespace fsdp
