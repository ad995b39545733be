// SPDX-License-Identifier: Apache-2.0
// The results of `diff` for two checkpoints.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/tensor_diff.h"
#include "tools/base/common.h"

namespace fsdp::cli {

struct DiffOptions {
  CommonOptions common;                     // `path` is A
  std::string other;                        // B
  std::array<std::string, 2> strip_prefix;  // removed from the keys of A, of B
  formats::Tolerance tolerance;
  bool close = false;  // the tolerance of each dtype, see close_tolerance; atol and rtol given stay
  bool has_atol = false;
  bool has_rtol = false;
  bool ignore_dtype = false;  // numbers are compared whatever their dtypes
  bool ignore_values = false;
};

enum class DifferenceKind { kOnlyA, kOnlyB, kKind, kDtype, kShape, kValue, kTensor };
inline constexpr DifferenceKind kDifferenceKinds[] = {
    DifferenceKind::kOnlyA, DifferenceKind::kOnlyB, DifferenceKind::kKind,  DifferenceKind::kDtype,
    DifferenceKind::kShape, DifferenceKind::kValue, DifferenceKind::kTensor};
// "only_a", "dtype": for JSON.
std::string kind_word(DifferenceKind kind);

// A difference other than kTensor.
struct Difference {
  DifferenceKind kind;
  std::string key;    // without the removed prefix
  std::string a, b;   // the dtype, shape or value on each side
  std::string hint;   // kOnlyA, kOnlyB: the nearest key that only the other one has
  std::string where;  // kValue: the path to the first difference within it
};

// A tensor that was compared element by element.
struct ComparedTensor {
  std::string key;  // without the removed prefix
  formats::DType a, b;
  std::vector<std::int64_t> shape;
  formats::TensorDifference figures;

  bool differs() const { return figures.different != 0; }
};

// Returns the indices of element `at` in a dense row-major tensor.
std::vector<std::int64_t> place_of(std::uint64_t at, const std::vector<std::int64_t>& shape);

struct Comparison {
  std::array<std::string, 2> formats;
  std::vector<Difference> differences;   // in natural order of their keys
  std::vector<ComparedTensor> compared;  // in natural order of their keys, also those that differ
  std::uint64_t values = 0;              // compared
  std::uint64_t within = 0;              // tensors with other bits, but within the tolerance
  std::uint64_t bytes = 0;               // of tensors, on one side
  std::uint64_t unchecked_bytes = 0;
  std::string prefix_hint;  // an option that would make keys match; empty if there is none

  std::uint64_t count(DifferenceKind kind) const;
  bool same() const { return differences.empty() && count(DifferenceKind::kTensor) == 0; }
};

// Compares the checkpoints.  Throws: what opening and reading throw, beginning with the side's
// path; kRekeyCollision if removing a prefix makes two keys one; kRekeyUnused if no key has the
// prefix; what SelectionCheck throws.
Comparison compare_checkpoints(const DiffOptions& options, const Streams& streams);

}  // namespace fsdp::cli
