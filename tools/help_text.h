// SPDX-License-Identifier: Apache-2.0
// The help of the tool and of its verbs, made of their records.
#pragma once

#include <cstddef>
#include <string>

namespace fsdp::cli {

// Each returns lines that fit into `columns`; 0: they have any length.
std::string tool_help(std::size_t columns);
// Requires: there is a verb of that name.
std::string verb_help(const std::string& name, std::size_t columns);

}  // namespace fsdp::cli
