// SPDX-License-Identifier: Apache-2.0
// The ints of LONG1 and LONG4: two's complement, little-endian, as few bytes as the sign allows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// Returns a kInt if it fits, else a kBigInt.  No bytes mean 0; bytes that only repeat the sign are
// dropped.
Value decode_long(std::string_view bytes);

std::string encode_long(std::int64_t number);

}  // namespace fsdp::formats
