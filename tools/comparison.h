// SPDX-License-Identifier: Apache-2.0
// The results of `diff` for two checkpoints.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/model/tensor_diff.h"
#include "tools/common.h"

namespace fsdp::cli {

struct DiffOptions {
  CommonOptions common;                     // `path` is A
  std::string other;                        // B
  std::array<std::string, 2> strip_prefix;  // taken off the keys of A, of B
  formats::Tolerance tolerance;
  bool close = false;  // the tolerance of each dtype, see close_tolerance; atol and rtol given stay
  bool has_atol = false;
  bool has_rtol = false;
  bool ignore_dtype = false;  // numbers are compared whatever their dtypes
  bool ignore_values = false;
};

enum class DifferenceKind { kOnlyA, kOnlyB, kKind, kDtype, kShape, kValue, kTensor };
// "only_a", "dtype": for JSON.
std::string kind_word(DifferenceKind kind);

struct Difference {
  DifferenceKind kind;
  std::string key;                    // without the prefix that was taken off
  std::string a, b;                   // the content of each side: a dtype, a shape, a value
  std::string hint;                   // kOnlyA, kOnlyB: the nearest key that only the other one has
  std::string where;                  // kValue: the way to the first difference within it
  std::vector<std::int64_t> shape;    // kTensor
  formats::TensorDifference figures;  // kTensor
};

struct Comparison {
  std::array<std::string, 2> formats;
  // Keys first, in natural order; then tensors, those with NaN or the largest error first.
  std::vector<Difference> differences;
  std::uint64_t tensors = 0;  // compared element by element
  std::uint64_t values = 0;   // compared
  std::uint64_t within = 0;   // tensors with other bits, but within the tolerance
  std::uint64_t bytes = 0;    // of tensors, on one side
  std::uint64_t unchecked_bytes = 0;
  std::string prefix_hint;  // an option that would make keys meet; empty if there is none
  std::uint64_t count(DifferenceKind kind) const;
};

// Throws: what opening and reading throw, the side's path in front; kRekeyCollision where taking a
// prefix off makes two keys one, kRekeyUnused where no key has it; what SelectionCheck throws.
Comparison compare_checkpoints(const DiffOptions& options, const Streams& streams);

}  // namespace fsdp::cli
