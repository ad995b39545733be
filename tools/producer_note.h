// SPDX-License-Identifier: Apache-2.0
// What an output carries that is plain data of a library, and that PyTorch asks for.
#pragma once

#include "formats/container/pickle_value.h"
#include "tools/writing.h"

namespace fsdp::cli {

// Adds to the report which producers' classes `content` has (producer_names.h), for an output that
// keeps them: torch.load(weights_only=True) wants to be told each of them.
void note_producers(const formats::Value& content, const std::string& format, ReportExtras& extras);

}  // namespace fsdp::cli
