// SPDX-License-Identifier: Apache-2.0
// What is wrong with the model of a checkpoint, by its configuration.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/bytes/base/json.h"
#include "formats/state/model/finding.h"
#include "tools/common.h"

namespace fsdp::cli {

struct ModelFinding {
  formats::Json architecture;               // the class, or null if there are no data of it
  std::vector<std::string> lines;           // what was compared, for people
  std::optional<formats::Finding> finding;  // what does not fit
};

// Compares the model as export would write it, prefixes off and names mapped, with the class that
// `config` names.  Elements are read only where tied tensors have to be equal.
// Throws: what opening the configuration and the checkpoint throw.
ModelFinding find_in_model(const CommonOptions& common, const Streams& streams,
                           const std::string& config);

}  // namespace fsdp::cli
