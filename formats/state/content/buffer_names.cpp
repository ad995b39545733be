// SPDX-License-Identifier: Apache-2.0
#include "formats/state/content/buffer_names.h"

#include <algorithm>
#include <array>

namespace fsdp::formats {
namespace {

// Buffers of batch norm, rotary embeddings and causal masks.
constexpr std::array<std::string_view, 13> kBufferNames = {
    "running_mean", "running_var", "num_batches_tracked", "inv_freq",   "original_inv_freq",
    "freqs_cis",    "cos_cached",  "sin_cached",          "rope_cache", "attn_mask",
    "causal_mask",  "masked_bias", "position_ids"};

}  // namespace

bool is_buffer(std::string_view name, DType dtype) {
  if (!is_differentiable(dtype)) return true;
  const std::string_view last = name.substr(name.rfind('.') + 1);
  return std::ranges::find(kBufferNames, last) != kBufferNames.end();
}

}  // namespace fsdp::formats
