// SPDX-License-Identifier: Apache-2.0
// The built-in maps: the files of formats/changes/map/maps, compiled in.
#pragma once

#include <span>
#include <string_view>

namespace fsdp::formats::map {

struct BuiltinMap {
  std::string_view name;  // of the file, without its suffix
  std::string_view text;
};

// Returns the maps in the order of their names.  Thread-safe.
std::span<const BuiltinMap> builtin_maps();

}  // namespace fsdp::formats::map
