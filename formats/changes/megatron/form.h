// SPDX-License-Identifier: Apache-2.0
// Turns the content of a checkpoint into that of Megatron-Core's kinds of folders, and the reverse.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats::megatron {

enum class Form {
  kStateDict,    // names of modules, layer by layer: what every other checkpoint has
  kTorchDist,    // layers and experts joined, what is not sharded beside them
  kFsdpDtensor,  // what Megatron-FSDP saves
};

// Returns the form that the checkpoint has, by its layout.
Form form_of(const CheckpointDescription& description);

// Return whether the content, or the index, of a folder of torch_dist has an optimizer in buckets.
bool has_buckets(const Value& content);
bool has_buckets(const Index& index);

struct Reformed {
  std::unique_ptr<Checkpoint> checkpoint;  // what the content refers to
  Value content;
  std::uint64_t left_out = 0;  // values that each rank has its own of, and that other
                               // forms cannot hold
};

struct ReformOptions {
  std::vector<std::string> names;  // the parameters in the order of modules, for buckets
  bool layers_apart = false;       // torch_dist: keep layers apart that are alike
};

// `content`: of `source`, in the form `from`, without placeholders.  Lifetime: the source outlives
// the result.  Tensors are only moved.
// Throws: see module_state.h.
Reformed reformed(const Checkpoint& source, const Value& content, Form from, Form to,
                  const ReformOptions& options = {});

}  // namespace fsdp::formats::megatron
