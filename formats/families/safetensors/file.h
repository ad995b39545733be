// SPDX-License-Identifier: Apache-2.0
// One safetensors file: u64 N, N bytes of JSON, then the tensors' bytes without holes.
// Source: the README of huggingface/safetensors, "Format".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/dtype.h"

namespace fsdp::formats::safetensors {

struct Tensor {
  std::string name;
  DType dtype;
  // In elements of `dtype`: the last dimension of a kFloat4E2M1FNx2 is half of that in the file.
  std::vector<std::int64_t> shape;
  std::uint64_t begin;  // of its bytes, from the start of the file
  std::uint64_t bytes;
};

struct Header {
  // Ordered by their bytes in the file; of two that begin at the same place, the empty one is
  // first.
  std::vector<Tensor> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;  // __metadata__, empty if absent
  std::uint64_t data_offset = 0;                              // the beginning of the tensors' bytes
  std::uint64_t end = 0;  // the end of the last one, from the start of the file
};

enum class Trailing { kRefuse, kAllow };

// Reads and checks a header.  Stricter than the reference implementation where the README is
// (duplicate names, a header that does not begin with '{') and about unprintable names; never
// looser.  Ignores unknown fields of a tensor, as the reference does.
// `offset`: the beginning of the safetensors data in `source` (DCP puts them after other items);
// positions in the result and in messages count from the start of `source`.
// kAllow: bytes may follow the last tensor.
// Throws: kStHeader (length), kStJson, kStDuplicate, kStField, kStDtype, kStShape, kStOffsets,
// kStSize, kStMetadata, kName, kJsonDepth, kIo.
Header read_header(const ByteSource& source, std::uint64_t offset = 0,
                   Trailing trailing = Trailing::kRefuse);

// Returns the start of a file (length, JSON padded with blanks to a multiple of 8) for tensors laid
// out in this order without holes; sets `begin` of each.  `metadata` goes under __metadata__, which
// is omitted if it is empty.
// Throws: kUnsupported naming a tensor whose dtype safetensors lacks, kName, kStDuplicate,
// kStShape, kStSize (`bytes` does not follow from dtype and shape), kStMetadata, kStHeader (more
// than 100 MB).
std::string make_header(std::vector<Tensor>& tensors,
                        const std::vector<std::pair<std::string, std::string>>& metadata);

// Orders tensors as the reference implementation stores them: large elements first, which keeps all
// aligned without padding, then by name.
bool stored_before(const Tensor& a, const Tensor& b);

// Throws: kName if a tensor in a file cannot have this name: empty, with control characters, longer
// than 64 KiB, not UTF-8, or the reserved "__metadata__".
void check_tensor_name(std::string_view name);

}  // namespace fsdp::formats::safetensors
