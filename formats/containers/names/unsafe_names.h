// SPDX-License-Identifier: Apache-2.0
// Finds the names anywhere in a value for which Python would run code.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "formats/bytes/base/byte_source.h"
#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// "module.name", in order: those outside the exact list of plain_names.h, and those in it that are
// used in another way.
using UnknownGlobals = std::set<std::string>;

// Examines a value that TorchPickleHost read, or one built from such values: visits every part of
// it, keys and their members, factories, states, hooks; each shared part once.
UnknownGlobals unknown_globals_in(const Value& value);

// Examines the bytes of `count` consecutive pickles (see NameScanner).  Requires: they were read.
UnknownGlobals unknown_globals_in(const ByteSource& source, std::uint64_t offset = 0,
                                  int count = 1);

}  // namespace fsdp::formats
