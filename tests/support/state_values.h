// SPDX-License-Identifier: Apache-2.0
// State dicts put together by hand.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "formats/containers/pickle/value.h"
#include "formats/state/content/tensor_value.h"

namespace fsdp::test {

using formats::DType;
using formats::Value;
using Members = std::vector<std::pair<std::string, Value>>;

inline Value dict(const Members& members) {
  std::vector<Value::Entry> entries;
  for (const auto& [name, value] : members) entries.emplace_back(Value::string(name), value);
  return Value::dict(std::move(entries));
}

// A tensor of one element.
inline Value tensor(DType dtype = DType::kFloat32) {
  return formats::make_dense_tensor(dtype, {1}, {.key = "0", .dtype = dtype, .numel = 1});
}

}  // namespace fsdp::test
