// SPDX-License-Identifier: Apache-2.0
// Reads the names, order and shapes of a model's parameters from a file or a checkpoint.
#pragma once

#include <filesystem>
#include <memory>

#include "formats/families/flat/parameter_list.h"
#include "formats/families/runs/formats.h"

namespace fsdp::formats {

// Returns the tensors of the model in a checkpoint of any format, in the order of its state dict,
// or the parameters of a file `*.json` (parse_parameter_list).  The order counts as that of the
// model if the file keeps the order in which names were saved, and they are in the order of
// modules. Names of one tensor are tied. Throws: kKey if the checkpoint holds no model, or several;
// kLimitSize; what open_checkpoint and parse_parameter_list throw, beginning with the path.
std::shared_ptr<const flat::ParameterList> read_parameter_list(const std::filesystem::path& path,
                                                               const OpenOptions& options = {});

}  // namespace fsdp::formats
