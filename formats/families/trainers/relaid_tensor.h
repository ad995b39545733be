// SPDX-License-Identifier: Apache-2.0
// Turns the DTensor that a rank saved into the one that a rank of a job of another size saves.
// Source: torch/distributed/device_mesh.py and torch/distributed/tensor of PyTorch 2.4 to 2.11.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// The object keeps the form that its version of PyTorch gave it: only the local part, the device
// and the mesh change.  Parts that DTensors share, such as the mesh, stay shared.
class RelaidTensors {
 public:
  // The mesh gets one dimension of `ranks`, with `rank` as this rank's place.  `numbers` returns a
  // tensor of that integer type with the ranks from 0 on.
  RelaidTensors(std::int64_t rank, std::int64_t ranks, std::function<Value(DType)> numbers)
      : rank_(rank), ranks_(ranks), numbers_(std::move(numbers)) {}

  // Requires: sharded_value took `dtensor` for a DTensor on a mesh of one dimension.
  // Lifetime: `dtensor` outlives this object.
  // Throws: kUnsupported if the mesh is a part of another one or of the job, or has an attribute
  // that is not known; kLimitDepth.
  Value relaid(const Value& dtensor, const Value& local);

 private:
  Value changed(const Value& value);
  std::vector<Value> changed(std::span<const Value> items);
  Value changed_mesh(const ObjectData& mesh);
  Value mesh_attribute(const std::string& name, const Value& value);
  Value made(const Value& value);

  std::int64_t rank_;
  std::int64_t ranks_;
  std::function<Value(DType)> numbers_;
  std::unordered_map<const void*, Value> known_;  // by the identity of the original
};

}  // namespace fsdp::formats
