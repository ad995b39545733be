// SPDX-License-Identifier: Apache-2.0
// Any bytes as the `.metadata` of a folder: gives a consistent index, which joins with itself, or
// an Error.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/error.h"
#include "formats/families/dcp/metadata.h"
#include "formats/state/model/check.h"

namespace fsdp::formats {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check_location(const Index& index, const Location& location) {
  require(location.file < index.files.size());
  require(location.transform < index.transforms.size());
  require(location.length <= UINT64_MAX - location.offset);
}

void check_promises(const dcp::Metadata& metadata) {
  const Index& index = metadata.index;
  require(index.order.size() == index.tensors.size() + index.values.size());
  for (const TensorEntry& tensor : index.tensors) {
    require(!tensor.path.empty() && tensor.chunks.rank() == tensor.shape.size());
    require(tensor.bytes() / item_bytes(tensor.dtype) == tensor.numel());
    for (std::size_t c = 0; c < tensor.chunks.size(); ++c) {
      check_location(index, tensor.chunks.location(c));
      for (const std::int64_t offset : tensor.chunks.box(c).offset) require(offset >= 0);
      for (const std::int64_t size : tensor.chunks.box(c).size) require(size >= 0);
    }
  }
  for (const ValueEntry& value : index.values) check_location(index, value.location);
}

void fuzz(std::span<const std::byte> bytes) {
  try {
    const MemorySource source(bytes);
    dcp::Metadata metadata = dcp::read_metadata(source, ".metadata", {"mine.Class"});
    check_promises(metadata);
    Findings findings;
    for (const TensorEntry& tensor : metadata.index.tensors) check_coverage(tensor, findings);
    check_extents(metadata.index, findings);
    for (const Finding& finding : findings) require(!finding_text(finding).empty());
    merge_metadata(metadata, dcp::read_metadata(source, "__1.metadata", {"mine.Class"}));
    check_promises(metadata);
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace fsdp::formats

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fsdp::formats::fuzz(std::as_bytes(std::span(data, size)));
  return 0;
}
