// SPDX-License-Identifier: Apache-2.0
// Words that people type for what has another name here.
#pragma once

#include <string>
#include <string_view>

namespace fsdp::cli {

// Returns a sentence about what to type instead of a verb, or of an option with its dashes; empty
// if nothing is known of the word.
std::string_view meant_verb(std::string_view word);
std::string_view meant_option(std::string_view word);

// Returns the same for a PATH that is not there: one that a shell would have expanded, and the name
// of a repository on a hub.
std::string meant_path(const std::string& path);

}  // namespace fsdp::cli
