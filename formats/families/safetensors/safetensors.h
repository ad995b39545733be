// SPDX-License-Identifier: Apache-2.0
// Checkpoints of safetensors files, read and written (docs/formats/safetensors.md).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "formats/bytes/files/listing.h"
#include "formats/families/safetensors/writer.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/content/output.h"

namespace fsdp::formats::safetensors {

// Returns whether the file begins like a safetensors file: a plausible length, then '{'.
bool looks_like_safetensors(const ByteSource& source);

// What opening does about files that are missing, cut off or unreadable.
enum class Damage {
  kRefused,
  kGoneAround,  // they become findings; the index has what lies in the others.  The findings name
                // each key that the index of Hugging Face has and the files lack.
};

// Opens one file.  Throws: what read_header throws, beginning with the path.
std::unique_ptr<StoredCheckpoint> open_file(const std::filesystem::path& path,
                                            Damage damage = Damage::kRefused);

// Opens a folder that holds *.safetensors.  An index file (*.safetensors.index.json) lists the
// files and tensors.  Otherwise every file is read, and offsets in the headers, if any, join the
// files.  `index` names the index file if there are several.  Throws: kIndex (index and files
// disagree, several indexes, a rank's file is missing, two files hold a tensor), kNotFound if there
// is no safetensors file, kDtype, kRank; what read_header throws.
std::unique_ptr<StoredCheckpoint> open_folder(
    const std::filesystem::path& folder, const std::optional<std::string>& index = std::nullopt,
    Damage damage = Damage::kRefused);

// Returns whether the folder holds a *.safetensors file or an index of such files.
bool is_safetensors_folder(const Listing& folder);

// Writes a checkpoint as safetensors: one file, or a folder of files with a Hugging Face index.

// Plans an output for `content`, the result of content_of.  Lifetime: the source outlives the
// output.
// Throws: kUnsupported naming a key that is not a tensor (unless `drop_values`), and if no tensor
// is left; what Writer throws.
std::unique_ptr<Output> plan_output(const Checkpoint& source, const Value& content,
                                    const std::filesystem::path& destination,
                                    const OutputOptions& options, const WriterOptions& how,
                                    bool drop_values);

}  // namespace fsdp::formats::safetensors
