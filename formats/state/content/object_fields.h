// SPDX-License-Identifier: Apache-2.0
// Access to inert records: members of mappings, attributes of objects, shapes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/model/index.h"

namespace fsdp::formats {

// Returns the member of a dict or an OrderedDict; nullptr if there is none.  Lifetime: that of
// `mapping`.
const Value* member(const Value& mapping, std::string_view name);

// Returns the value at a path of a nested state dict (the path has integer keys as text); nullptr
// if there is none.  Lifetime: that of `root`.
const Value* at_path(const Value& root, std::span<const PathStep> path);

// Returns the attribute of an object: from the dict it was built from, or from the pair (dict,
// slots) of classes with slots.  nullptr if there is none.
const Value* attribute(const Value& object, std::string_view name);

// Returns the name of the class that made the object, without its module; empty if the value is not
// an object.
std::string_view class_name(const Value& object);

// Returns whether the value is a list or a tuple.
bool is_sequence(const Value& value);

// Returns the integers of a tuple, a list, or a torch.Size; nothing if an item is not an integer.
std::optional<std::vector<std::int64_t>> integers(const Value& value);

// Returns the sizes of a shape in the same way; nothing if a size is negative, or if there are more
// than 2^63 - 1 elements.
std::optional<std::vector<std::int64_t>> shape_of(const Value& value);

// Returns a mapping of the kind of `like` (OrderedDict with its attributes, defaultdict, Counter,
// dict) with these entries; a dict if `like` is not a mapping.
Value mapping_like(const Value& like, std::vector<Value::Entry> entries);

}  // namespace fsdp::formats
