// SPDX-License-Identifier: Apache-2.0
// Names of tensors with "{}" in the place of numbers: "layers.{}.bias" for those of all layers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::formats::hf {

// Returns the name with "{}" in the place of each number between dots, and these numbers.
std::pair<std::string, std::vector<std::int64_t>> pattern_of(const std::string& name);

// Returns `pattern` with the numbers in the places of "{}".
std::string filled(const std::string& pattern, const std::vector<std::int64_t>& numbers);

// Returns the entry of `names` for a name, or for its pattern, with its numbers; empty: there is
// none.
std::string translated(const std::map<std::string, std::string>& names, const std::string& name);

}  // namespace fsdp::formats::hf
