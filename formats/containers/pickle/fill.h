// SPDX-License-Identifier: Apache-2.0
// Fills containers and objects made by a stream, with the checks that keep values sound.
#pragma once

#include <span>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// Note [open and sealed]: a list, dict, set or object is open until something else refers to it: a
// container that takes it, a call, or a fetch from the memo.  Then it is sealed and never changes
// again.  Python's pickler completes each container before it writes the next reference, unless the
// container contains itself; so nothing that is read contains itself (Note [cycles] covers the
// exceptions), and the depth of members is final.

// Make empty containers and objects, without the overhead of Value's functions that fill them.
Value make_list();
Value make_dict();
Value make_object(const Value& callable, Value args, bool by_new);

// Moves `items` into the first argument and seals them.  Throws: kType if the first argument is of
// another kind, or an object that has its state; kCycle if it is sealed; kKey for keys that Python
// refuses or that occur twice; kStack for an odd number of keys and values.
void append_items(Value& list, std::span<Value> items);
void set_items(Value& dict, std::span<Value> keys_and_values);
void add_items(Value& set, std::span<Value> items);
// Makes a frozen set of the items.
Value make_frozen_set(std::span<Value> items);

// Sets the state of an object.  Throws: kBuild if it is not an object, or has a state; kCycle.
void build_object(Value& object, Value state);

// Throws: kCycle if the container is sealed.  Requires: `container` has a node.
void check_open(const Value& container);

}  // namespace fsdp::formats
