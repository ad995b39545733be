// SPDX-License-Identifier: Apache-2.0
// How far quantized weights are from the weights that they stand for.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/dtype.h"
#include "formats/changes/quantized/scheme.h"
#include "formats/containers/pickle/value.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "formats/state/model/tensor_reader.h"

namespace fsdp::formats::quantized {

// Figures of elements that are finite in both, except for the counts.  Sums are in float64 over the
// elements of a block of the tensor, then over its blocks in their order: the same for any number
// of threads.
struct ErrorFigures {
  std::uint64_t count = 0;
  std::uint64_t not_finite = 0;  // NaN or infinite, in one of the two
  std::uint64_t zeros = 0;       // of the quantized weight
  std::uint64_t original_zeros = 0;
  double square_sum = 0;  // of the original
  double error_sum = 0;   // of squares of the differences
  double max_abs = 0;     // of the differences

  // Returns the norm of the differences by that of the original; nothing if the latter is 0.
  std::optional<double> relative() const;
  // Returns 10 log10 of square_sum by error_sum; nothing if one of them is 0.
  std::optional<double> decibels() const;
  void append(const ErrorFigures& behind);
};

// Compares as many elements of an original with those of its quantized weight.
// Requires: floating dtypes.
ErrorFigures error_figures(DType original, std::span<const std::byte> before, DType weight,
                           std::span<const std::byte> after);

struct WeightError {
  std::string key;     // NAME.weight
  std::string scheme;  // "int4, a scale for each 128 of a row"
  std::vector<std::int64_t> shape;
  ErrorFigures figures;
  // Numbers at an end of their range, such as +-448 or -8 and 7; nothing if the bits of a number
  // cross bytes.
  std::optional<std::uint64_t> saturated;
};

struct ErrorReport {
  std::vector<WeightError> weights;  // in the order of the quantized model
  // Weights that the original lacks or has in another shape, and which of both.
  std::vector<std::pair<std::string, std::string>> not_compared;
};

struct ModelTensors {
  const Checkpoint& checkpoint;
  const Value& tensors;  // by name
};

// Dequantizes to `to`, and compares each selected weight with the tensor of its name in the
// original.  Reads both once, and the quantized numbers once more.
// Throws: what dequantized_model and reading throw; kDtype for an original that is not floating.
ErrorReport quantization_error(const ModelTensors& original, const ModelTensors& quantized,
                               const Settings& settings, DType to,
                               const std::function<bool(const std::string& key)>& selected,
                               const VisitOptions& options);

}  // namespace fsdp::formats::quantized
