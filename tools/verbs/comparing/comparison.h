// SPDX-License-Identifier: Apache-2.0
// The results of `diff` for two checkpoints.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/tensor_diff.h"
#include "tools/base/common.h"
#include "tools/verbs/models/map_choice.h"

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
  // The way from one side's names to those of the other; what is not given is found.
  std::string map;    // a built-in map, a file of rules, or kNoMap: names stay as they are
  std::string model;  // its key, on the side that has one there
  MapChoice choice;   // the map's parameters
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
  // Returns the indices of element `at`; of packed floats, of the value.
  std::vector<std::int64_t> place_of(std::uint64_t at) const;
};

// The way by which one side is an export of the other: its model under other names.
struct ExportWay {
  std::size_t origin = 0;                            // the side whose model was exported
  std::array<std::string, 2> models;                 // their keys; empty: the top level
  std::array<std::vector<std::string>, 2> prefixes;  // taken off the names of each side
  std::string map;                                   // from the origin's names; empty: none
  std::size_t named_by = 0;                          // the side whose names the keys are
  // With a map: the names on the other side, by key.
  std::map<std::string, std::vector<std::string>> names;
  std::string tied;                     // the head that the export lacks: it equals the embedding
  std::array<std::size_t, 2> beside{};  // entries beside the model, which are not compared
  // The dtypes that elements of the origin are rounded to, and for how many tensors.
  std::map<std::pair<formats::DType, formats::DType>, std::uint64_t> rounded;
};

struct Comparison {
  std::array<std::string, 2> formats;
  std::vector<Difference> differences;   // in natural order of their keys
  std::vector<ComparedTensor> compared;  // in natural order of their keys, also those that differ
  std::uint64_t values = 0;              // compared
  std::uint64_t within = 0;              // tensors with other bits, but within the tolerance
  std::uint64_t bytes = 0;               // of tensors, on one side
  std::uint64_t unchecked_bytes = 0;
  std::optional<ExportWay> way;  // only the models are compared
  std::string no_way;            // why there is none; empty: it was not looked for, or there is one
  std::string prefix_hint;       // an option that would make keys match; empty if there is none

  std::uint64_t count(DifferenceKind kind) const;
  bool same() const { return differences.empty() && count(DifferenceKind::kTensor) == 0; }
};

// Compares the checkpoints.  Throws: what opening and reading throw, beginning with the side's
// path; kRekeyCollision if removing a prefix makes two keys one; kRekeyUnused if no key has the
// prefix; what SelectionCheck and find_export throw.
Comparison compare_checkpoints(const DiffOptions& options, const Streams& streams);

}  // namespace fsdp::cli
