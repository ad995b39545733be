// SPDX-License-Identifier: Apache-2.0
// --ema: averages of weights in the place of the weights.
#pragma once

#include <string>
#include <vector>

#include "tools/base/option_set.h"
#include "tools/verbs/writing/conversion.h"

namespace fsdp::cli {

struct AverageRequest {
  bool asked = false;
  std::string names;  // a file with the names of averages that have none, in their order
};

// Declares --ema and --names.
void declare_averages(OptionSet& options, AverageRequest& request);

// Returns the content with averages in the place of weights, and reports them: see
// formats::averaged_weights, whose errors it throws.
Changed averaged_change(const formats::Checkpoint& source, const formats::Value& content,
                        const AverageRequest& request, ReportExtras& extras);

// Returns the error for --names where averages have names.  `place`: the key of the averages.
Error names_are_stored(const formats::Checkpoint& source, const std::string& place);

// Reports buffers without an average.
void note_kept_buffers(const std::vector<std::string>& kept, ReportExtras& extras);

}  // namespace fsdp::cli
