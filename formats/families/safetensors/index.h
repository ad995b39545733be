// SPDX-License-Identifier: Apache-2.0
// Joins several safetensors files into one checkpoint by the index file of Hugging Face, or by the
// offsets that PyTorch's HuggingFaceStorageWriter puts into the header of each rank's file.
// Sources: transformers, modeling_utils.py; torch 2.11, distributed/checkpoint/_hf_utils.py.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/files/file.h"
#include "formats/families/safetensors/file.h"

namespace fsdp::formats::safetensors {

// ---- model.safetensors.index.json

struct IndexEntry {
  std::string tensor;
  std::string file;  // relative to the index
};

struct FileIndex {
  std::vector<IndexEntry> weight_map;  // in the order of the file
  // Bytes of all tensors, if the writer recorded them; writers count tied weights once or twice.
  std::optional<std::uint64_t> total_size;
};

// Reads an index file:
//   {"metadata": {"total_size": 40}, "weight_map": {"a": "model-00001-of-00002.safetensors"}}
// Other members are ignored.  A file name is a relative path of plain components that ends in
// `suffix`; indexes of torch.save files (torch/torch.h) differ only in the suffix.
// Throws: kIndex (also for a tensor that is named twice), kJson, kJsonDepth, kName.
FileIndex parse_index(std::string_view text, std::string_view suffix = ".safetensors");

// Reads and parses the index file `name` of a folder.
// Throws: as parse_index; kLimitSize for a file above 256 MiB; kIo.
FileIndex read_index(const Folder& folder, const std::string& name,
                     std::string_view suffix = ".safetensors");

// Returns the text of an index file, as transformers and PyTorch write it.
// Throws: kIndex, kName like parse_index.
std::string make_index(const FileIndex& index);

// Returns the files of the weight map, each once, in order of first mention.
std::vector<std::string> files_of(const FileIndex& index);

struct FileHeader {
  std::string name;  // as in the weight map
  const Header* header;
};

// Checks the weight map against the headers of its files: each tensor lies only in the file that
// the map names, and each tensor of a file is in the map.
// Requires: `files` has each of `files_of(index)` once.
// Throws: kIndex naming tensor and file.
void check_index(const FileIndex& index, std::span<const FileHeader> files);

// ---- DCP_SHARDING_INFO

// Where the tensor of a rank's file begins within the whole tensor.
struct SavedOffsets {
  std::string tensor;
  std::vector<std::int64_t> offsets;  // one per dimension
};

// Returns the offsets in a header's metadata, one for each of `header.tensors` and in that order;
// nothing if the header has none: each tensor is then whole.
// Throws: kStMetadata if they are not one list of integers >= 0 for each tensor, of the tensor's
// rank and with offset + size below 2^63; kJsonDepth.
std::optional<std::vector<SavedOffsets>> saved_offsets(const Header& header);

// Returns the metadata that HuggingFaceStorageWriter puts into a rank's file: format, version and
// offsets.
std::vector<std::pair<std::string, std::string>> sharding_metadata(
    std::span<const SavedOffsets> tensors);

}  // namespace fsdp::formats::safetensors
