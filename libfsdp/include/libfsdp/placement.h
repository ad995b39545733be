// SPDX-License-Identifier: Apache-2.0
// Parameters that are parts of larger ones: tensor and expert parallelism.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libfsdp/device_mesh.h"
#include "libfsdp/shard_layout.h"

namespace fsdp {

// DTensor's Shard(dim): along `dim`, ranks of the mesh have the parts of torch.chunk, in order.
struct Placement {
  DeviceMesh mesh;  // of one dimension
  int dim = 0;
};

struct PlacedParameter {
  std::vector<std::int64_t> shape;    // of the whole
  std::vector<Placement> placements;  // one cut after the other
};

// Returns the layout of this rank's part, for one rank that holds all of its rows.
// Throws: c10::Error for a mesh of several dimensions, or a dimension that the shape does not have.
ShardLayout layout_of(const PlacedParameter& parameter);

// A second base class for a torch::nn::Module with own parameters that are parts. fully_shard() and
// the wrapper then shard the parts over other dimensions of the mesh; norms of gradients and
// checkpoints cover the whole parameters.
class PlacedModule {
 public:
  virtual ~PlacedModule() = default;
  // Returns a parameter's placements; none: it is whole, and the same on every rank of the mesh.
  // `name`: as the module registered it.
  virtual PlacedParameter placed(const std::string& name) const = 0;

 protected:
  PlacedModule() = default;
  PlacedModule(const PlacedModule&) = default;
  PlacedModule& operator=(const PlacedModule&) = default;
};

}  // namespace fsdp
