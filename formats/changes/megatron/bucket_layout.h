// SPDX-License-Identifier: Apache-2.0
// Finds the parameters of a model in the buffers of Megatron-Core's distributed optimizer, by the
// elements of their float32 copies.
//
// A rank's parameters lie in a buffer in the reverse order of its modules; each begins at a
// multiple of 64 elements of a bucket.  Checkpoints store neither names nor order.  But the copy of
// a parameter that is rounded to the dtype of the model is that parameter, bit for bit: so it is in
// the folder twice, and one tells the place of the other.
// Source: DistributedOptimizer._compute_per_buffer_param_layout and param_layout.py of
// Megatron-Core 0.19; docs/formats/megatron.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "formats/changes/arrays/array.h"
#include "formats/changes/megatron/module_state.h"
#include "formats/state/model/box.h"

namespace fsdp::formats::megatron {

// The elements that a rank has of a parameter: all, or some with tensor parallelism.
struct RankPart {
  std::size_t parameter = 0;    // of the model
  std::size_t number = 0;       // among the parts of its kind
  std::size_t count = 1;        // of these parts
  std::vector<Box> boxes = {};  // in the parameter; one follows the other in the rank's memory
  arrays::Array elements = {};  // the same, of one dimension
};

// Returns what ranks may have of each parameter: the whole, each chunk that the folder has of it,
// and of gated linear units a chunk of the gate with that of the input.
std::vector<RankPart> rank_parts(const std::vector<NamedArray>& model);

struct Bucket {
  std::string key;                              // without the state
  std::map<std::string, arrays::Array> states;  // of one dimension and one size; "param" is one
};

// A part in a buffer.
struct PartPlace {
  std::size_t part = 0;
  std::size_t bucket = 0;
  std::int64_t begin = 0;  // in the bucket
};

class BucketLayout {
 public:
  // Reads the first elements of each part.  `names`: the parameters in the order of their modules,
  // if it is known; else empty.  Lifetime: the model outlives it.
  // Throws: kKey if `names` lacks a parameter; the errors of reading.
  BucketLayout(const std::vector<NamedArray>& model, const std::vector<std::string>& names,
               const std::string& path);

  const std::vector<RankPart>& parts() const { return parts_; }

  // Returns the place of each part in a buffer.  Reads its float32 parameters, and the model's that
  // are in it.  If parameters of the model hold the same elements, `names` tells them apart;
  // without it the parameters around them do, as layers follow each other and have one order.
  // Throws: kMismatch where the buffer holds no parameter of the model; kRekeyAmbiguous if one of
  // several may stand there; the errors of reading.
  std::vector<PartPlace> places(const std::vector<Bucket>& buffer);

 private:
  class Buffer;

  const std::vector<NamedArray>& model_;
  const std::string& path_;
  std::vector<RankPart> parts_;
  std::vector<std::size_t> order_;  // of each parameter; empty: not known
  // Parts by their number of elements and their dtype, and by a hash of the first elements.
  std::map<std::int64_t, std::map<DType, std::map<std::size_t, std::vector<std::size_t>>>> begins_;
  std::vector<std::size_t> alike_;  // of each part a part that holds the same elements
};

}  // namespace fsdp::formats::megatron
