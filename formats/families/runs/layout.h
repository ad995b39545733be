// SPDX-License-Identifier: Apache-2.0
// Finds out how a folder or a file is laid out, by its content and never by its name alone.
#pragma once

#include <filesystem>

#include "formats/bytes/base/byte_source.h"

namespace fsdp::formats {

enum class Layout {
  kNothing,
  kDcp,
  kNemo,
  kAccelerate,
  kDeepSpeed,
  kUniversal,
  kFairscale,
  kRankFiles,
  kTorchCheckpointing,
  kTrainer,
  kSafetensors,
  kTorchIndex,
  kHdf5,
  kTorch
};

// Returns the layout of the checkpoint that a folder's own files form.  Throws: kIo.
Layout layout_of_folder(const std::filesystem::path& folder);
Layout layout_of_file(const ByteSource& file);

// Returns whether a path has a layout; false if the path cannot be examined.
bool opens(const std::filesystem::path& path);

// Returns whether a save into the folder was interrupted: data files without metadata.
bool is_interrupted(const std::filesystem::path& folder);

// Returns whether a file is or was a checkpoint.  A file that lost its bytes or cannot be opened
// counts, so that its reader reports the error.
bool was_checkpoint_file(const std::filesystem::path& path);

}  // namespace fsdp::formats
