// SPDX-License-Identifier: Apache-2.0
// Archives of PyTorch that are programs rather than state dicts: torch.jit.save and
// torch.export.save
// (.pt2).  They are named, and their checksums compared; what they hold is not read.
// Source: torch/csrc/jit/serialization and torch/export/pt2_archive of PyTorch 1.6 to 2.11.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "formats/checkpoint/checkpoint.h"
#include "formats/zip/reader.h"

namespace fsdp::formats {

// What the archive whose records stand in the folder `prefix` ("archive/") is: "a torch.export
// archive (.pt2)", "a TorchScript archive".  Empty where it is no program.
std::string_view torch_program(const ZipReader& zip, const std::string& prefix);

// A checkpoint of no tensors and values, whose one finding says what the archive is (kUnknown);
// null where the path is no such archive, or not to be read: who opens it otherwise says why.
std::unique_ptr<Checkpoint> open_torch_program(const std::filesystem::path& path);

}  // namespace fsdp::formats
