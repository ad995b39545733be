// SPDX-License-Identifier: Apache-2.0
// The names of a value that Python would run code for, wherever in it they stand.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "formats/base/byte_source.h"
#include "formats/pickle/value.h"

namespace fsdp::formats {

// "module.name", in order: those outside the exact list of plain_names.h, and those in it that are
// used otherwise than there.
using UnknownGlobals = std::set<std::string>;

// Of a value that TorchPickleHost read or that was made of such: every part of it is visited, keys
// and their members, factories, states, hooks; each shared part once.
UnknownGlobals unknown_globals_in(const Value& value);

// Of `count` pickles one behind the other, from their bytes (see NameScanner).  Requires: they were
// read.
UnknownGlobals unknown_globals_in(const ByteSource& source, std::uint64_t offset = 0,
                                  int count = 1);

}  // namespace fsdp::formats
