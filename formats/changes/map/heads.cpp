// SPDX-License-Identifier: Apache-2.0
// Heads of attention as maps declare them.
#include "formats/changes/map/heads.h"

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::map {
namespace {

// Products of two stay far below 2^63.
constexpr std::int64_t kMostHeads = std::int64_t{1} << 30;

std::int64_t bounded(std::int64_t number) {
  if (number < -1 || number > kMostHeads)
    throw Error(ErrorCode::kShape, cat("no attention has ", number, " heads, or rows of a head"));
  return number;
}

std::int64_t divided(std::int64_t rows, std::int64_t by) {
  return by > 0 && rows % by == 0 ? rows / by : 0;
}

}  // namespace

std::string Heads::text() const {
  return cat(share * groups, " heads of queries and ", groups, " of keys and values");
}

Heads heads_of(const Operation& operation, const HeadRows& rows, const ParameterValue& parameter) {
  const auto value = [&](const Expression& one) { return bounded(one.value(parameter)); };
  std::int64_t heads = value(operation.heads[0]);
  std::int64_t groups = value(operation.heads[1]);
  const std::int64_t times = operation.gated ? 2 : 1;
  std::int64_t key = 0;
  std::int64_t of_value = 0;
  if (!operation.head_rows.empty()) {
    key = value(operation.head_rows[0]);
    of_value = value(operation.head_rows[1]);
    if (heads == -1) {
      heads = rows.fused != 0 ? divided(rows.fused - groups * (key + of_value), times * key)
                              : divided(rows.queries, key);
    } else if (groups == -1) {
      groups = rows.fused != 0 ? divided(rows.fused - times * heads * key, key + of_value)
                               : divided(rows.keys, key);
    }
  }
  if (groups <= 0 || heads <= 0 || heads % groups != 0) {
    throw Error(ErrorCode::kShape, cat(heads, " heads are not divisible into ", groups, " groups"));
  }
  if (operation.head_rows.empty()) {
    key = rows.fused != 0 ? rows.fused / (times * heads + 2 * groups) : rows.keys / groups;
    of_value = key;
  }
  Heads out{groups, heads / groups, {heads / groups * key, key, of_value}};
  if (operation.gated) out.rows.insert(out.rows.begin(), out.rows[0]);
  return out;
}

}  // namespace fsdp::formats::map
