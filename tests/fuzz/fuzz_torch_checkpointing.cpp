// SPDX-License-Identifier: Apache-2.0
// Any bytes as the metadata.pkl of a folder by torch_checkpointing: gives boxes inside their
// tensors, or an Error.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/error.h"
#include "formats/families/torch_checkpointing/metadata.h"

namespace fsdp::formats::torch_checkpointing {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check_boxes(const Sharding& sharding) {
  for (const std::int64_t rank : *sharding.ranks) {
    for (const HeldBox& held : sharding.boxes_of(rank)) {
      require(held.box.size.size() == sharding.shape.size());
      for (std::size_t d = 0; d < sharding.shape.size(); ++d) {
        require(held.box.offset[d] >= 0 && held.box.size[d] >= 0 && held.local_offset[d] >= 0);
        require(held.box.offset[d] <= sharding.shape[d] - held.box.size[d]);
      }
    }
  }
}

void fuzz(std::span<const std::byte> bytes) {
  try {
    const MemorySource source(bytes);
    looks_like_metadata(source);
    const Metadata metadata = read_metadata(source);
    for (const Item& item : metadata.items) {
      require(item.needed.size() == static_cast<std::size_t>(metadata.world_size));
      for (const TensorLayout& tensor : item.tensors) {
        require(item.find(tensor.key) == &tensor);
        for (const auto& sharding : tensor.shardings->groups) check_boxes(*sharding);
      }
    }
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace fsdp::formats::torch_checkpointing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fsdp::formats::torch_checkpointing::fuzz(std::as_bytes(std::span(data, size)));
  return 0;
}
