// SPDX-License-Identifier: Apache-2.0
// What a run has put in place already, for the messages of what fails behind it: a report that
// nobody can be given does not undo an output.
#pragma once

#include <string>

namespace fsdp::cli {

// The output is complete under its name.
void note_placed(const std::string& destination);
// A run begins.
void forget_placed();
// "; full.pt is in place", escaped; empty where nothing is.
std::string placed_text();

}  // namespace fsdp::cli
