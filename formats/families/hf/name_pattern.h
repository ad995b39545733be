// SPDX-License-Identifier: Apache-2.0
// Names of tensors with "{}" in the place of numbers: "layers.{}.bias" for those of all layers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::formats::hf {

// Puts "{}" in the place of numbers between dots, which are returned.
std::pair<std::string, std::vector<std::int64_t>> pattern_of(const std::string& name);

// Puts the numbers in the place of "{}".
std::string filled(const std::string& pattern, const std::vector<std::int64_t>& numbers);

// Returns what `names` has for a name, or for its pattern; empty: nothing.
std::string translated(const std::map<std::string, std::string>& names, const std::string& name);

}  // namespace fsdp::formats::hf
