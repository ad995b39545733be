// SPDX-License-Identifier: Apache-2.0
// torch.save files as checkpoints, read and written (docs/formats/torch_save.md).
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "formats/bytes/files/listing.h"
#include "formats/containers/zip/reader.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/content/output.h"

namespace fsdp::formats {

// Opens a torch.save file.  Throws: what read_torch_file throws, beginning with the path.
std::unique_ptr<StoredCheckpoint> open_torch_save(const std::filesystem::path& path);

// Opens a torch.save archive that lost its end, or whose directory is damaged: tensors behind the
// first record that is not whole lie past the end of the file.  Throws: what with_new_directory and
// read_cut_torch_file throw, beginning with the path.
std::unique_ptr<StoredCheckpoint> open_cut_torch_save(const std::filesystem::path& path);

// Weights in several torch.save files with an index that names the file of each tensor:
// pytorch_model-00001-of-00002.bin and pytorch_model.bin.index.json.
// Source: transformers/modeling_utils.py of Transformers 4.57, save_model of Accelerate 1.15;
// docs/formats/torch_save.md.

// Returns whether the name is that of an index of torch.save files: *.bin.index.json.
bool is_torch_index_name(const std::string& name);

bool holds_torch_index(const Listing& folder);

// Returns the only index of the folder.  Requires: holds_torch_index.  Throws: kIndex if there are
// several.
std::string torch_index_of(const Listing& folder);

// Opens the files of the index as one checkpoint: each key of each file, in the order of the files'
// names.  Findings name contradictions to the index: a missing file, a different total_size, and a
// key in two files, in the wrong file, in no file, or not in the index.
// Throws: what parse_index and read_torch_file throw.
std::unique_ptr<StoredCheckpoint> open_torch_index(const std::filesystem::path& folder,
                                                   const std::string& index);

// Writes a checkpoint as one torch.save file.

// Plans an output for `content`, the result of content_of.  Content of a torch.save file keeps its
// views and parameters. Lifetime: the source outlives the output.  Throws: what TorchSaveWriter
// throws.
std::unique_ptr<Output> plan_torch_output(const Checkpoint& source, const Value& content,
                                          const std::filesystem::path& destination,
                                          const OutputOptions& options);

// Archives of PyTorch that are programs rather than state dicts: torch.jit.save and
// torch.export.save (.pt2).  Their kind is reported and their checksums are compared; their content
// is not read.
// Source: torch/csrc/jit/serialization and torch/export/pt2_archive of PyTorch 1.6 to 2.11.

// Returns the kind of the archive whose records lie in the folder `prefix` ("archive/"): "a
// torch.export archive (.pt2)", "a TorchScript archive".  Empty if it is not a program.
std::string_view torch_program(const ZipReader& zip, const std::string& prefix);

// Returns a checkpoint without tensors and values, whose one finding names the kind of archive
// (kUnknown).  Returns null if the path is not such an archive, or cannot be read: other ways of
// opening it report the reason.
std::unique_ptr<StoredCheckpoint> open_torch_program(const std::filesystem::path& path);

}  // namespace fsdp::formats
