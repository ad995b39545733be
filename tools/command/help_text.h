// SPDX-License-Identifier: Apache-2.0
// The help of the tool and of its verbs, made from their records.
#pragma once

#include <cstddef>
#include <string>

namespace fsdp::cli {

// Both return lines of at most `columns` characters; 0: no limit.
std::string tool_help(std::size_t columns);
// Requires: a verb of that name exists.
std::string verb_help(const std::string& name, std::size_t columns);

}  // namespace fsdp::cli
