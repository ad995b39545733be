// SPDX-License-Identifier: Apache-2.0
// Notes on library classes in an output that are plain data, but that torch.load must be told to
// accept.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "formats/containers/pickle/value.h"
#include "formats/families/checks/content_check.h"
#include "tools/verbs/writing/writing.h"

namespace fsdp::cli {

// Names of classes by producer (producer_names.h).
using ProducerNames = std::map<std::string_view, std::set<std::string>>;

// Adds the classes in `value`.
void add_producers(const formats::Value& value, ProducerNames& names);

// Adds the classes in an output to the report: torch.load(weights_only=True) must be told to accept
// each of them.
void note_producers(const ProducerNames& names, ReportExtras& extras);
// The same for `content`, if `format` can hold objects.
void note_producers(const formats::Value& content, const std::string& format, ReportExtras& extras);

// Reports tensors of a library's class that are written as the floats that they represent.
void note_computed(const formats::CopyCheck& check, ReportExtras& extras);

}  // namespace fsdp::cli
