// SPDX-License-Identifier: Apache-2.0
// Words that users type for things that have another name here.
#pragma once

#include <string>
#include <string_view>

namespace fsdp::cli {

// Returns a sentence about what to type instead of an unknown verb, or of an option with its
// dashes; empty if nothing is known about the word.
std::string_view meant_verb(std::string_view word);
std::string_view meant_option(std::string_view word);

// Returns a sentence about a PATH that does not exist: one that a shell would have expanded, or the
// name of a repository on a hub.
std::string meant_path(const std::string& path);

}  // namespace fsdp::cli
