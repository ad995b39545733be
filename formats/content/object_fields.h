// SPDX-License-Identifier: Apache-2.0
// Looking into inert records: members of mappings, attributes of objects, shapes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "formats/model/index.h"
#include "formats/pickle/value.h"

namespace fsdp::formats {

// The member of a dict or an OrderedDict; nullptr where there is none.  Lifetime: that of
// `mapping`.
const Value* member(const Value& mapping, std::string_view name);

// What a path of a nested state dict leads to (integer keys stand in it as text); nullptr where
// there is nothing.  Lifetime: that of `root`.
const Value* at_path(const Value& root, std::span<const PathStep> path);

// The attribute of an object: of the dict it was built from, or of the pair (dict, slots) that
// classes with slots have.  nullptr where there is none.
const Value* attribute(const Value& object, std::string_view name);

// The name of the class that made the object, without its module; empty for what is no object.
std::string_view class_name(const Value& object);

// Integers of a tuple, a list, or a torch.Size; nothing where an item is no integer.
std::optional<std::vector<std::int64_t>> integers(const Value& value);

// The same for a shape: nothing where a size is negative or the elements are more than 2^63 - 1.
std::optional<std::vector<std::int64_t>> shape_of(const Value& value);

}  // namespace fsdp::formats
