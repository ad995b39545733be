// SPDX-License-Identifier: Apache-2.0
// Writes pickle protocol 2 with the opcodes that torch.load(weights_only=True) accepts.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "formats/pickle/value.h"

namespace fsdp::formats {

struct PickleWriterOptions {
  // The key under which a storage stands in the new archive.  Empty: the one it has.
  std::function<std::string(const StorageRef&)> storage_key;
};

// One value as a complete pickle stream, PROTO to STOP.  Values that share a node are written once
// and fetched from the memo (so aliases, and tied parameters, stay what they were); equal strings
// and equal names are shared as well, storages never.  Names of Python 3's builtins are written as
// protocol 2 has them (__builtin__), names with dots as getattr calls.  bytes are _codecs.encode
// calls, sets are set([...]) calls.  Iterative: depth cannot exhaust the stack.
//
// A back-reference is a fetch of what holds it (Note [cycles]).
//
// Throws: kType for a kOpaque inside, kCycle for a back-reference to what is not written, kIntRange
// for ints of more than 255 bytes, kName for names that no Python module can have, kDtype for typed
// storages of types that have no storage class, kStorage, kLimitSize.
std::string write_pickle(const Value& value, const PickleWriterOptions& options = {});

}  // namespace fsdp::formats
