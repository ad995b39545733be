// SPDX-License-Identifier: Apache-2.0
// Parses Slurm's notation for nodes, "node[03-05,9],other", and counts, "4(x2),1" for 4, 4, 1.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fsdp::internal {

// Both throw c10::Error, naming `variable`, if the text is not in that notation.
std::vector<std::string> parse_node_list(std::string_view text, std::string_view variable);
std::vector<int> parse_task_counts(std::string_view text, std::string_view variable);

}  // namespace fsdp::internal
