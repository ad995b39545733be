// SPDX-License-Identifier: Apache-2.0
// Weights of bitsandbytes.
#include <array>
#include <optional>
#include <span>
#include <string>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/computed.h"
#include "formats/changes/arrays/decode.h"
#include "formats/changes/arrays/dequantize.h"
#include "formats/changes/arrays/elementwise.h"
#include "formats/changes/quantized/stored_weight.h"

namespace fsdp::formats::quantized {
namespace {

using arrays::Array;
using arrays::Code;
using arrays::Packing;

constexpr std::uint64_t kMostState = 4096;
constexpr std::int64_t kMostBlock = 1 << 20;
// What products of 8 bits are multiplied with: 1 / 127, as bitsandbytes has it.
constexpr double kPerUnit = 7.874015718698502e-3;

struct State {
  std::int64_t block = 0;
  Shape shape;
  std::int64_t nested_block = 0;  // 0: scales are floats
  double nested_offset = 0;
};

std::optional<State> state_of(const Array& array) {
  if (array.dtype != DType::kUInt8 || numel_of(array) > kMostState) return std::nullopt;
  std::string text(numel_of(array), '\0');
  arrays::ArrayReader(array).read(0, std::as_writable_bytes(std::span(text)));
  Json json;
  try {
    json = parse_json(text);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kJson && error.code() != ErrorCode::kJsonDepth) throw;
    return std::nullopt;
  }
  const auto integer = [&](const char* member) -> std::int64_t {
    const Json* const found = json.find(member);
    return found == nullptr || found->as_int() == nullptr ? 0 : *found->as_int();
  };
  State state;
  state.block = integer("blocksize");
  state.nested_block = integer("nested_blocksize");
  const Json* const sizes = json.find("shape");
  if (sizes == nullptr || sizes->as_array() == nullptr) return std::nullopt;
  for (const Json& size : *sizes->as_array()) {
    if (size.as_int() == nullptr || *size.as_int() < 0) return std::nullopt;
    state.shape.push_back(*size.as_int());
  }
  if (const Json* const offset = json.find("nested_offset")) {
    const double* const number = std::get_if<double>(&offset->storage());
    const std::int64_t* const whole = offset->as_int();
    if (number == nullptr && whole == nullptr) return std::nullopt;
    state.nested_offset = number != nullptr ? *number : static_cast<double>(*whole);
  }
  const bool blocks = state.block > 0 && state.block <= kMostBlock && state.nested_block >= 0 &&
                      state.nested_block <= kMostBlock;
  return blocks ? std::optional(state) : std::nullopt;
}

std::int64_t ceil(std::int64_t size, std::int64_t block) {
  return size / block + (size % block == 0 ? 0 : 1);
}

// Returns the numbers of a table of floats.
std::optional<std::vector<float>> table_of(const Array* array, std::uint64_t size) {
  if (array == nullptr || array->dtype != DType::kFloat32 || numel_of(*array) != size)
    return std::nullopt;
  std::vector<float> out(size);
  arrays::ArrayReader(*array).read(0, std::as_writable_bytes(std::span(out)));
  return out;
}

}  // namespace

Tried dequantized_by_table(const StoredWeight& weight, DType to) {
  const Array* const held = weight.find(Role::kState);
  if (held == nullptr) return "no quant_state";
  const auto state = state_of(*held);
  if (!state) return unlike("quant_state", *held, "JSON with blocksize and shape");
  arrays::check_bytes(state->shape, DType::kFloat32);
  const auto count = static_cast<std::int64_t>(volume({state->shape, state->shape}));
  const Array& bytes = weight.at(Role::kNumbers);
  if (bytes.dtype != DType::kUInt8 || numel_of(bytes) != static_cast<std::uint64_t>(ceil(count, 2)))
    return unlike("numbers", bytes, cat(ceil(count, 2), " bytes of uint8"));
  const auto table = table_of(weight.find(Role::kTable), 16);
  if (!table) return "no quant_map of 16 numbers";
  // The first number of a byte lies in its high half.
  Packing packing{.code = Code::kTable, .bits = 4, .order = {1, 0}, .table = *table};
  arrays::Dequantization from{
      .numbers = arrays::decoded(arrays::reshaped(bytes, Shape{ceil(count, 2)}), packing, {count})};
  from.grid.columns = static_cast<std::uint64_t>(count);
  from.grid.block_columns = static_cast<std::uint64_t>(state->block);
  from.to = to;
  const Array& scales = weight.at(Role::kScales);
  const Shape blocks = {ceil(count, state->block)};
  if (scales.shape != blocks) return unlike("absmax", scales, shape_text(blocks));
  if (state->nested_block == 0) {
    if (!is_floating(scales.dtype)) return unlike("absmax", scales, "floating numbers");
    from.scales = scales;
    return arrays::dequantized(from, state->shape);
  }
  // The scales are bytes with scales of their own.
  const auto nested_table = table_of(weight.find(Role::kNestedTable), 256);
  const Array* const nested = weight.find(Role::kNestedScales);
  if (scales.dtype != DType::kUInt8 || !nested_table || nested == nullptr ||
      nested->dtype != DType::kFloat32 ||
      nested->shape != Shape{ceil(blocks[0], state->nested_block)})
    return unlike("absmax", scales, "uint8, nested_quant_map and nested_absmax");
  arrays::Dequantization inner{
      .numbers = arrays::decoded(scales, {.code = Code::kTable, .table = *nested_table}, blocks),
      .scales = *nested};
  inner.grid.columns = static_cast<std::uint64_t>(blocks[0]);
  inner.grid.block_columns = static_cast<std::uint64_t>(state->nested_block);
  from.scales =
      arrays::with_step(arrays::dequantized(inner, blocks),
                        {.kind = arrays::Arithmetic::kAdd, .number = state->nested_offset});
  return arrays::dequantized(from, state->shape);
}

Tried dequantized_rows(const StoredWeight& weight, DType to) {
  const Array& numbers = weight.at(Role::kNumbers);
  const Array& scales = weight.at(Role::kScales);
  if (numbers.dtype != DType::kInt8 || numbers.shape.size() != 2)
    return unlike("numbers", numbers, "a matrix of int8");
  if (scales.dtype != DType::kFloat32 || scales.shape != Shape{numbers.shape[0]})
    return unlike("SCB", scales, cat("float32 [", numbers.shape[0], "]"));
  if (const Array* const format = weight.find(Role::kOrder)) {
    std::byte row{};
    if (format->dtype != DType::kUInt8 || numel_of(*format) != 1)
      return unlike("weight_format", *format, "one uint8");
    arrays::ArrayReader(*format).read(0, {&row, 1});
    if (row != std::byte{0}) return "weight_format is not 0, rows after each other";
  }
  arrays::Dequantization from{
      .numbers = arrays::decoded(numbers, {.code = Code::kSigned}, numbers.shape),
      .scales = scales};
  from.grid.rows = static_cast<std::uint64_t>(numbers.shape[0]);
  from.grid.columns = static_cast<std::uint64_t>(numbers.shape[1]);
  from.grid.block_columns = std::max<std::uint64_t>(1, from.grid.columns);
  const Array units = arrays::with_step(arrays::dequantized(from, numbers.shape),
                                        {.kind = arrays::Arithmetic::kScale, .number = kPerUnit});
  return to == DType::kFloat32 ? units : arrays::with_step(units, {arrays::Arithmetic::kCast, to});
}

}  // namespace fsdp::formats::quantized
