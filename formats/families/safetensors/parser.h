// SPDX-License-Identifier: Apache-2.0
// The JSON of a safetensors header, parsed and checked tensor by tensor; `read_header` checks the
// tensors' places against each other and the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/families/safetensors/file.h"

namespace fsdp::formats::safetensors {

// A tensor, in the order of the header.  Offsets count from the start of the data; `tensor.begin`
// is not set.
struct HeaderEntry {
  Tensor tensor;
  std::uint64_t name_offset;  // of the name's opening quote, for messages
  std::uint64_t data_begin;
  std::uint64_t data_end;  // not before data_begin; the size follows from dtype and shape
};

struct HeaderJson {
  std::vector<HeaderEntry> entries;
  std::vector<std::pair<std::string, std::string>> metadata;
};

// Parses the text of a header.  `base_offset` is the offset of the text in the file.
// Throws: kStJson, kStDuplicate, kStField, kStDtype, kStShape, kStOffsets, kStSize, kStMetadata,
// kName, kJsonDepth.
HeaderJson parse_header_json(std::string_view text, std::uint64_t base_offset);

}  // namespace fsdp::formats::safetensors
