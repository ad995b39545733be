// SPDX-License-Identifier: Apache-2.0
// What the checker of the simulated device has found.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace fsdp::test::sim {

// Notes a finding.  `chains`: each a word that says whose calls they are, and their number (see
// call_chain.h).  Equal findings count as one.  Thread-safe.
void report(std::string what, std::vector<std::pair<std::string, int>> chains);

// Returns what was found since the last call, one text each, with chains of calls.  Thread-safe.
std::vector<std::string> take_findings();

}  // namespace fsdp::test::sim
