// SPDX-License-Identifier: Apache-2.0
// Weights of bitsandbytes.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

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
constexpr std::array<std::int64_t, 8> kBlockSizes = {32, 64, 128, 256, 512, 1024, 2048, 4096};
// What products of 8 bits are multiplied with: 1 / 127, as bitsandbytes has it.
constexpr double kPerUnit = 7.874015718698502e-3;

// The numbers of each kind, whatever lies beside the weight.
// Source: get_4bit_type of bitsandbytes 0.50.
constexpr std::array<float, 16> kNf4 = {-1.0F,
                                        -0.6961928009986877F,
                                        -0.5250730514526367F,
                                        -0.39491748809814453F,
                                        -0.28444138169288635F,
                                        -0.18477343022823334F,
                                        -0.09105003625154495F,
                                        0.0F,
                                        0.07958029955625534F,
                                        0.16093020141124725F,
                                        0.24611230194568634F,
                                        0.33791524171829224F,
                                        0.44070982933044434F,
                                        0.5626170039176941F,
                                        0.7229568362236023F,
                                        1.0F};
constexpr std::array<float, 16> kFp4 = {
    0, 0.0625F / 12,  8.0F / 12,  1,  4.0F / 12,  0.5F,  2.0F / 12,  0.25F,
    0, -0.0625F / 12, -8.0F / 12, -1, -4.0F / 12, -0.5F, -2.0F / 12, -0.25F};
// Older versions computed the numbers that they stored.
constexpr float kRounding = 1e-6F;
constexpr std::array<std::string_view, 7> kStateMembers = {
    "quant_type",       "blocksize",    "dtype",        "shape",
    "nested_blocksize", "nested_dtype", "nested_offset"};

struct State {
  std::string kind;  // "nf4"
  std::int64_t block = 0;
  Shape shape;
  std::int64_t nested_block = 0;  // 0: scales are floats
  double nested_offset = 0;
};

// Returns what the tensor says, or why bitsandbytes would refuse it.
std::variant<State, std::string> state_of(const Array& array) {
  const std::string unlike_json = unlike("quant_state", array, "JSON with blocksize and shape");
  if (array.dtype != DType::kUInt8 || numel_of(array) > kMostState) return unlike_json;
  std::string text(numel_of(array), '\0');
  arrays::ArrayReader(array).read(0, std::as_writable_bytes(std::span(text)));
  Json json;
  try {
    json = parse_json(text);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kJson && error.code() != ErrorCode::kJsonDepth) throw;
    return unlike_json;
  }
  const auto integer = [&](const char* member) -> std::int64_t {
    const Json* const found = json.find(member);
    return found == nullptr || found->as_int() == nullptr ? 0 : *found->as_int();
  };
  const auto word = [&](const char* member) -> std::string {
    const Json* const found = json.find(member);
    return found == nullptr || found->as_string() == nullptr ? "" : *found->as_string();
  };
  const Json* const sizes = json.find("shape");
  if (sizes == nullptr || sizes->as_array() == nullptr || sizes->as_array()->empty())
    return unlike_json;
  State state;
  for (const Json& size : *sizes->as_array()) {
    if (size.as_int() == nullptr || *size.as_int() < 0) return unlike_json;
    state.shape.push_back(*size.as_int());
  }
  for (const auto& [member, value] : *json.as_object()) {
    if (std::ranges::find(kStateMembers, member) == kStateMembers.end())
      return cat("quant_state has a member ", quote(member, 100), ", which bitsandbytes refuses");
  }
  state.kind = word("quant_type");
  if (state.kind != "nf4" && state.kind != "fp4")
    return cat("quant_type of quant_state is ", quote(state.kind, 100), ", known are nf4 and fp4");
  state.block = integer("blocksize");
  if (std::ranges::find(kBlockSizes, state.block) == kBlockSizes.end()) {
    return cat("blocksize of quant_state is ", state.block,
               ", bitsandbytes has powers of two from 32 to 4096");
  }
  const std::string dtype = word("dtype");
  if (dtype != "float32" && dtype != "float16" && dtype != "bfloat16") {
    return cat("dtype of quant_state is ", quote(dtype, 100),
               ", known are float32, float16 and bfloat16");
  }
  state.nested_block = integer("nested_blocksize");
  if (state.nested_block == 0) return state;
  const Json* const offset = json.find("nested_offset");
  const double* const number =
      offset == nullptr ? nullptr : std::get_if<double>(&offset->storage());
  const std::int64_t* const whole = offset == nullptr ? nullptr : offset->as_int();
  if (state.nested_block < 0 || state.nested_block > kMostBlock ||
      word("nested_dtype") != "float32" || (number == nullptr && whole == nullptr))
    return "quant_state has no nested_blocksize, nested_offset and nested_dtype of float32";
  state.nested_offset = number != nullptr ? *number : static_cast<double>(*whole);
  return state;
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
  const auto told = state_of(*held);
  if (const auto* const why = std::get_if<std::string>(&told)) return *why;
  const State* const state = std::get_if<State>(&told);
  arrays::check_bytes(state->shape, DType::kFloat32);
  const auto count = static_cast<std::int64_t>(volume({state->shape, state->shape}));
  const Array& bytes = weight.at(Role::kNumbers);
  if (bytes.dtype != DType::kUInt8 || numel_of(bytes) != static_cast<std::uint64_t>(ceil(count, 2)))
    return unlike("numbers", bytes, cat(ceil(count, 2), " bytes of uint8"));
  const auto table = table_of(weight.find(Role::kTable), 16);
  if (!table) return "no quant_map of 16 numbers";
  // bitsandbytes computes with the numbers of the kind, and some of its kernels with those stored.
  const auto& known = state->kind == "nf4" ? kNf4 : kFp4;
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (!(std::abs((*table)[i] - known[i]) <= kRounding)) {
      return cat("quant_map has ", (*table)[i], " at ", i, ", but ", state->kind, " is ", known[i],
                 " there, which bitsandbytes computes with whatever is stored");
    }
  }
  // The first number of a byte lies in its high half.
  Packing packing{
      .code = Code::kTable, .bits = 4, .order = {1, 0}, .table = {known.begin(), known.end()}};
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
    if (weight.find(Role::kNestedScales) != nullptr)
      return "nested_absmax, but quant_state has no nested_blocksize";
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
