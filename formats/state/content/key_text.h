// SPDX-License-Identifier: Apache-2.0
// Keys of dicts as text, as PyTorch writes them when it flattens a state dict.
#pragma once

#include <string>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// Returns the text of Python's str(): 3, torch.float32, cuda:0, (1,), frozenset({1, 2}).  An object
// whose class defines its own str() is shown as the call that makes it.
// Throws: kName if the text exceeds 64 KiB.
std::string key_text(const Value& key);

// Returns the text of Python's repr(), in which 1 and '1' differ; otherwise like key_text.
std::string key_repr(const Value& key);

// Throws: kName if the key, a single step or steps joined, exceeds 64 KiB.
void check_key(const std::string& key);

}  // namespace fsdp::formats
