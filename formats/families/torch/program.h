// SPDX-License-Identifier: Apache-2.0
// Archives of PyTorch that are programs rather than state dicts: torch.jit.save and
// torch.export.save (.pt2).  Their kind is reported and their checksums are compared; their content
// is not read.
// Source: torch/csrc/jit/serialization and torch/export/pt2_archive of PyTorch 1.6 to 2.11.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "formats/containers/zip/reader.h"
#include "formats/state/checkpoint/checkpoint.h"

namespace fsdp::formats {

// Returns the kind of the archive whose records lie in the folder `prefix` ("archive/"): "a
// torch.export archive (.pt2)", "a TorchScript archive".  Empty if it is not a program.
std::string_view torch_program(const ZipReader& zip, const std::string& prefix);

// Returns a checkpoint without tensors and values, whose one finding names the kind of archive
// (kUnknown).  Returns null if the path is not such an archive, or cannot be read: other ways of
// opening it report the reason.
std::unique_ptr<Checkpoint> open_torch_program(const std::filesystem::path& path);

}  // namespace fsdp::formats
