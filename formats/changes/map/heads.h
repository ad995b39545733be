// SPDX-License-Identifier: Apache-2.0
// How the rows of queries, keys and values lie in one tensor: by groups of heads that share a key.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/changes/map/operation.h"

namespace fsdp::formats::map {

struct Heads {
  std::int64_t groups = 0;
  std::int64_t share = 0;  // heads of queries in a group
  // Of each part in a group: queries, perhaps a gate, a key, a value.
  std::vector<std::int64_t> rows;

  // "4 heads of queries and 2 of keys and values"
  std::string text() const;
};

// The rows of all parts together, or those of queries and of keys.
struct HeadRows {
  std::int64_t fused = 0;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
};

// Returns what kFuseQkv or kSplitQkv declares; what it leaves open the rows say.
// Throws: kShape if heads are not divisible into groups; what `parameter` throws.
Heads heads_of(const Operation& operation, const HeadRows& rows, const ParameterValue& parameter);

}  // namespace fsdp::formats::map
