// SPDX-License-Identifier: Apache-2.0
// Keys of dicts as text: what PyTorch makes of them when it flattens a state dict.
#pragma once

#include <string>

#include "formats/pickle/value.h"

namespace fsdp::formats {

// What Python's str() says: 3, torch.float32, cuda:0, (1,), frozenset({1, 2}).  Objects whose str()
// is their class's own are shown as the call that makes them.
// Throws: kName where the text exceeds 64 KiB.
std::string key_text(const Value& key);

// What Python's repr() says, which tells 1 and '1' apart; otherwise as key_text.
std::string key_repr(const Value& key);

// Throws: kName where a key, of one level or of all, exceeds 64 KiB.
void check_key(const std::string& key);

}  // namespace fsdp::formats
