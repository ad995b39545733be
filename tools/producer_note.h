// SPDX-License-Identifier: Apache-2.0
// What an output carries that is plain data of a library, and that PyTorch asks for.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "formats/checks/content_check.h"
#include "formats/pickle/value.h"
#include "tools/writing.h"

namespace fsdp::cli {

// Producers' classes by producer (producer_names.h).
using ProducerNames = std::map<std::string_view, std::set<std::string>>;

// Adds those that `value` has.
void add_producers(const formats::Value& value, ProducerNames& names);

// Adds to the report which of them an output carries: torch.load(weights_only=True) wants to be
// told each of them.
void note_producers(const ProducerNames& names, ReportExtras& extras);
// The same of `content`, where an output of `format` keeps objects at all.
void note_producers(const formats::Value& content, const std::string& format, ReportExtras& extras);

// Adds which tensors are written as the floats that a library's class stands for.
void note_computed(const formats::CopyCheck& check, ReportExtras& extras);

}  // namespace fsdp::cli
