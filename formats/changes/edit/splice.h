// SPDX-License-Identifier: Apache-2.0
// Drops keys of a checkpoint, and takes in keys of another one.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/select.h"

namespace fsdp::formats {

struct Splice {
  std::vector<Glob> drop;                   // keys of the first checkpoint
  std::shared_ptr<const Checkpoint> other;  // of any format; may be null if nothing is taken
  std::vector<Glob> take;                   // keys of `other`
  std::set<std::string> take_exactly;       // keys of `other` that are taken as well
  bool replace = false;  // a taken key takes the place of what the first one has there
};

struct TakenKey {
  std::string key;
  std::string what;  // "float32 [3]", "a value"
  std::string was;   // of what it replaces; empty if the key is new
};

struct Spliced {
  // `source`, or a checkpoint with tensors of the other one after those of `source`.
  std::shared_ptr<const Checkpoint> checkpoint;
  Value content;
  std::vector<std::string> dropped;  // in the order of the content
  std::vector<TakenKey> taken;       // in the order of the other one
  bool holds_others = false;         // tensors or storages of the other one must be read
};

// Drops and takes keys.  `content` is that of `source`, edited or not.  A taken key that replaces a
// key, or a dropped one, stands in its place.  Other taken keys follow the keys of their
// containers, which keep their kinds: a dict whose keys are integers gets integers.  Tensors that
// are tied in `other` stay tied.
// Throws: kNotFound naming the nearest key if a glob matches nothing; kRekeyCollision naming what
// both checkpoints have if a taken key exists already and `replace` is not set; kKey if a key of
// one lies inside a tensor or a value of the other, or a list would get a gap; the errors of
// reading values.
Spliced spliced(std::shared_ptr<const Checkpoint> source, const Value& content,
                const Splice& splice);

}  // namespace fsdp::formats
