// SPDX-License-Identifier: Apache-2.0
// A nested value taken apart into leaves that remember the containers they lie in, so that it can
// be put together again with leaves at other places.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/model/index.h"

namespace fsdp::formats {

// One step down: the container, and the key or position in it.
struct PlacedStep {
  PathStep step;    // the key as text, or the position
  Value key;        // as the mapping holds it: text, an integer; nothing for positions
  Value container;  // the new container has its kind; None: a plain dict or list
};

struct PlacedLeaf {
  std::string was;  // its key in the source, for messages
  std::vector<PlacedStep> path;
  Value value;
};

// Returns the leaves of leaves_of, in their order.  Throws: the errors of leaves_of.
std::vector<PlacedLeaf> placed_leaves(const Value& root);

// Returns a step to the key `text`, in a container of the kind that `like` is a step in.
PlacedStep text_step(std::string text, const PlacedStep& like);

// Returns the entries of a mapping; none if `value` is not a mapping.  Lifetime: those of `value`.
std::span<const Value::Entry> members_of(const Value& value);

// Returns `root` with another value at the path; containers keep their kinds.  Requires: the path
// exists in `root`.
Value with_value_at(const Value& root, std::span<const PathStep> path, const Value& value);

// Returns the path in the form of the paths of an index, which messages show too.
KeyPath key_path(const PlacedLeaf& leaf);

// Puts the leaves together again, in containers of the kinds they had: OrderedDicts with their
// attributes, tuples, keys of their types.  Members are ordered by their first leaves; if a
// position of a list is left without leaves, later ones move up.
// Throws: kRekeyCollision naming two leaves if one takes the place of the other or lies inside it.
Value rebuilt(const std::vector<PlacedLeaf>& leaves);

// Replaces the first `bytes` of the leaf's key, which must be whole components, by `to`.  Leading
// levels that both keys share stay.  The rest of `to` becomes as many steps as the replaced part
// had; further components become steps of their own before these, in plain dicts.
// Throws: kName if nothing would be left of the key.
void move_leaf(PlacedLeaf& leaf, std::size_t bytes, std::string_view to);

}  // namespace fsdp::formats
