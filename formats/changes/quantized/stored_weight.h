// SPDX-License-Identifier: Apache-2.0
// The tensors of a quantized weight, and the weight that they stand for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "formats/changes/arrays/array.h"
#include "formats/changes/quantized/scaled_shape.h"
#include "formats/changes/quantized/scheme.h"

namespace fsdp::formats::quantized {

// What a tensor is for its weight.
enum class Role {
  kNumbers,
  kScales,
  kZeros,   // zero points
  kSecond,  // the scale of the scales
  kShape,   // the shape of the weight
  kOrder,   // the group of each input
  kInputs,  // what inputs are multiplied with before the weight
  kTable,   // the number of each code
  kState,   // of bitsandbytes: JSON
  kNestedScales,
  kNestedTable
};

// The roles of a dialect's tensors, and how their names end after that of their module.  Some roles
// have several endings.
std::vector<std::pair<Role, std::string_view>> endings_of(Dialect dialect);
// Returns the ending of one role; `packed`: of numbers that are packed.
std::string_view ending_of(Dialect dialect, Role role, bool packed);
inline constexpr std::string_view kPlainName = ".weight";  // numbers that are not packed

struct StoredWeight {
  std::string name;     // of the numbers, for messages
  bool packed = false;  // the numbers have a name that weights do not have
  std::map<Role, arrays::Array> parts;
  std::map<Role, std::size_t> tensors = {};  // their positions in the index of the source

  const arrays::Array& at(Role role) const { return parts.at(role); }
  const arrays::Array* find(Role role) const {
    const auto found = parts.find(role);
    return found == parts.end() ? nullptr : &found->second;
  }
};

// A weight of dtype `to`, or why the scheme does not explain the tensors.
using Tried = std::variant<arrays::Array, std::string>;

// Requires: the numbers and the scales are there.  Throws: kOverflow; what reading the small
// tensors that tell the shape throws.
Tried dequantized_weight(Dialect dialect, const Scheme& scheme, const StoredWeight& weight,
                         DType to);
// GPTQ and AWQ: matrices [inputs, outputs], which are turned.
Tried dequantized_by_inputs(Dialect dialect, const Scheme& scheme, const StoredWeight& weight,
                            DType to);
// bitsandbytes: 4 bits with a table of numbers, and 8 bits.
Tried dequantized_by_table(const StoredWeight& weight, DType to);
Tried dequantized_rows(const StoredWeight& weight, DType to);

// Returns whether numbers of 8 bits have that dtype.
bool is_float8(DType dtype);

// "scales float32 [3], expected float16".
std::string unlike(const char* what, const arrays::Array& array, std::string_view expected);

}  // namespace fsdp::formats::quantized
