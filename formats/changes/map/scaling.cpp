// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/map/scaling.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/quantize.h"
#include "formats/changes/quantized/quantized_weight.h"

namespace fsdp::formats::map {
namespace {

using arrays::Array;
using quantized::Dialect;
using quantized::Role;
using quantized::Scheme;
using quantized::Sharing;

Error bad_scaling(ErrorCode code, const Operation& operation, const std::string& what) {
  return Error(code, cat(operation_name(operation.kind), " ", what));
}

void check_dtype(const Operation& operation, const Array& array, bool fits,
                 std::string_view wanted) {
  if (fits) return;
  throw bad_scaling(ErrorCode::kDtype, operation,
                    cat("takes ", wanted, ", not ", torch_name(array.dtype)));
}

// Returns the scheme, with blocks of the sizes that the operation declares.
Scheme scheme_of(const Operation& operation, const ParameterValue& parameter) {
  Scheme scheme = operation.scheme;
  if (operation.block.empty()) return scheme;
  scheme.rows = operation.block[0].value(parameter);
  scheme.columns = operation.block[1].value(parameter);
  if (scheme.rows < 1 || scheme.columns < 1) {
    throw bad_scaling(
        ErrorCode::kShape, operation,
        cat("takes blocks of at least one element, not ", scheme.rows, " x ", scheme.columns));
  }
  return scheme;
}

std::string_view word_of(Role role) {
  switch (role) {
    case Role::kNumbers:
      return "numbers";
    case Role::kScales:
      return "scales";
    case Role::kZeros:
      return "zero points";
    case Role::kSecond:
      return "scales of the scales";
    default:
      return "shapes";
  }
}

// "numbers, scales".
std::string words_of(const std::vector<Role>& roles) {
  std::string out;
  for (const Role role : roles) out += cat(out.empty() ? "" : ", ", word_of(role));
  return out;
}

Array dequantized_one(const Operation& operation, const Scheme& scheme,
                      const quantized::StoredWeight& stored) {
  const DType dtype = quantized::number_dtype(operation.dialect, scheme);
  const Array& numbers = stored.at(Role::kNumbers);
  check_dtype(operation, numbers, numbers.dtype == dtype, torch_name(dtype));
  const Array& scales = stored.at(Role::kScales);
  check_dtype(operation, scales, scheme.powers || is_floating(scales.dtype), "floating scales");
  quantized::Tried tried =
      quantized::dequantized_weight(operation.dialect, scheme, stored, operation.dtype);
  if (auto* const array = std::get_if<Array>(&tried)) return std::move(*array);
  throw bad_scaling(ErrorCode::kShape, operation,
                    cat("takes another form: ", std::get<std::string>(tried)));
}

}  // namespace

std::size_t tensors_of_weight(const Operation& operation) {
  return quantized::roles_of(operation.dialect, operation.scheme).size();
}

std::vector<Array> dequantized(const Operation& operation, std::span<const Array> arrays,
                               const ParameterValue& parameter) {
  const Scheme scheme = scheme_of(operation, parameter);
  const std::vector<Role> roles = quantized::roles_of(operation.dialect, scheme);
  if (arrays.empty() || arrays.size() % roles.size() != 0) {
    throw bad_scaling(ErrorCode::kShape, operation,
                      cat("takes equally many of each: ", words_of(roles), "; not ", arrays.size(),
                          " arrays in all"));
  }
  const std::size_t count = arrays.size() / roles.size();
  std::vector<Array> out;
  for (std::size_t i = 0; i < count; ++i) {
    quantized::StoredWeight stored{
        .name = {}, .packed = quantized::is_packed(operation.dialect, scheme), .parts = {}};
    for (std::size_t r = 0; r < roles.size(); ++r)
      stored.parts.emplace(roles[r], arrays[r * count + i]);
    out.push_back(dequantized_one(operation, scheme, stored));
  }
  return out;
}

std::vector<Array> quantized(const Operation& operation, std::span<const Array> arrays,
                             const ParameterValue& parameter) {
  const Scheme scheme = scheme_of(operation, parameter);
  float most = 0;
  for (const Array& array : arrays) {
    const bool any = operation.dialect == Dialect::kTransformersFp8;
    check_dtype(operation, array,
                is_floating(array.dtype) &&
                    (any || (item_bytes(array.dtype) > 1 && array.dtype != DType::kFloat64)),
                any ? "floating tensors" : "bfloat16, float16 and float32");
    const std::string why = quantized::unfit(operation.dialect, scheme, array.shape);
    if (!why.empty())
      throw bad_scaling(ErrorCode::kShape, operation, cat(why, ", not ", shape_text(array.shape)));
    if (scheme.second_scale) most = std::max(most, arrays::largest_magnitude(array));
  }
  std::vector<quantized::StoredWeight> weights;
  for (const Array& array : arrays)
    weights.push_back(quantized::quantized_weight(operation.dialect, scheme, array, most));
  std::vector<Array> out;
  for (const Role role : quantized::roles_of(operation.dialect, scheme)) {
    for (const quantized::StoredWeight& weight : weights) out.push_back(weight.at(role));
  }
  return out;
}

}  // namespace fsdp::formats::map
