// SPDX-License-Identifier: Apache-2.0
// Writes pickle protocol 2 with the opcodes that torch.load(weights_only=True) accepts.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

struct PickleWriterOptions {
  // Returns the key of a storage in the new archive.  Empty: its present key.
  std::function<std::string(const StorageRef&)> storage_key;
};

// Returns one value as a complete pickle stream, PROTO to STOP.  Values that share a node are
// written once and fetched from the memo, which preserves aliases and tied parameters.  Equal
// strings and equal names are shared as well; storages never are.  Names of Python 3's builtins are
// written with protocol 2's names (__builtin__), names with dots as getattr calls.  bytes are
// _codecs.encode calls, sets are set([...]) calls.  Iterative: depth cannot exhaust the stack.
//
// A back-reference is a fetch of the container that holds it (Note [cycles]).
//
// Throws: kType for a kOpaque inside, kCycle for a back-reference to a container that is not
// written, kIntRange for ints of more than 255 bytes, kName for names that no Python module can
// have, kDtype for typed storages of types without a storage class, kStorage, kLimitSize.
std::string write_pickle(const Value& value, const PickleWriterOptions& options = {});

}  // namespace fsdp::formats
