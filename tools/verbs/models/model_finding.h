// SPDX-License-Identifier: Apache-2.0
// Compares the model of a checkpoint with its configuration.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "formats/bytes/base/json.h"
#include "formats/state/model/finding.h"
#include "tools/base/common.h"

namespace fsdp::cli {

struct ModelFinding {
  formats::Json architecture;               // the class; null if there are no data of it
  std::vector<std::string> lines;           // what was compared, for users
  std::optional<formats::Finding> finding;  // the first contradiction
};

// Compares the model as export would write it, with prefixes stripped and names mapped, with the
// class that `config` names.  Reads elements only where tied tensors must be equal.
// Throws: what opening the configuration and the checkpoint throw.
ModelFinding find_in_model(const CommonOptions& common, const Streams& streams,
                           const std::string& config);

}  // namespace fsdp::cli
