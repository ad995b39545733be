// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/torchao.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::quantized {
namespace {

constexpr std::string_view kNames = "tensor_names";
constexpr std::string_view kPlain = "Tensor";
// A tile of scales as the hardware takes them: 32 x 4 x 4, of 128 rows and 4 columns.
constexpr std::int64_t kTileRows = 128;
constexpr std::int64_t kTileColumns = 4;
constexpr std::int64_t kTileLines = 32;

constexpr std::array<std::pair<std::string_view, Role>, 4> kRoles = {
    {{"qdata", Role::kNumbers},
     {"scale", Role::kScales},
     {"zero_point", Role::kZeros},
     {"per_tensor_scale", Role::kSecond}}};
constexpr std::array<std::string_view, 3> kActivationParts = {
    "act_quant_scale", "act_quant_zero_point", "act_per_tensor_scale"};

// Reads the description of one weight.
class Description {
 public:
  Description(std::string place, const Json& json) : place_(std::move(place)), json_(json) {}

  std::string type() const { return text_of(member(json_, "_type"), "_type"); }

  std::vector<std::string> tensors() const {
    const Json& found = member(json_, "_tensor_data_names");
    if (found.as_array() == nullptr) throw bad("_tensor_data_names", "a list", found);
    std::vector<std::string> out;
    for (const Json& one : *found.as_array()) out.push_back(text_of(one, "_tensor_data_names"));
    return out;
  }

  const Json& data(std::string_view name) const { return member(member(json_, "_data"), name); }

  // Returns the name of a dtype.
  std::string dtype(std::string_view name) const {
    const Json& found = data(name);
    if (found.as_string() != nullptr) return *found.as_string();  // fp6_e2m3, which PyTorch lacks
    return text_of(member(found, "_data"), name);
  }
  std::int64_t number(std::string_view name) const { return number_of(data(name), name); }
  Shape sizes(std::string_view name) const {
    const Json& found = data(name);
    if (found.as_array() == nullptr) throw bad(name, "a list of sizes", found);
    Shape out;
    for (const Json& one : *found.as_array()) out.push_back(number_of(one, name));
    return out;
  }
  bool flag(std::string_view name) const {
    const Json& found = data(name);
    if (found.as_bool() == nullptr) throw bad(name, "true or false", found);
    return *found.as_bool();
  }

  Error unlike_text(const std::string& what) const {
    return {ErrorCode::kMismatch, cat(place_, ": ", what)};
  }
  Error unsupported(const std::string& what) const {
    return {ErrorCode::kUnsupported, cat(place_, ": ", what)};
  }
  const std::string& place() const { return place_; }

 private:
  Error bad(std::string_view name, const char* wanted, const Json& found) const {
    return {ErrorCode::kJson,
            cat(place_, ": metadata: ", name, " is ", json_kind(found), ", expected ", wanted)};
  }
  const Json& member(const Json& from, std::string_view name) const {
    const Json* const found = from.find(name);
    if (found == nullptr) throw Error(ErrorCode::kJson, cat(place_, ": metadata has no ", name));
    return *found;
  }
  std::string text_of(const Json& from, std::string_view name) const {
    if (from.as_string() == nullptr) throw bad(name, "a string", from);
    return *from.as_string();
  }
  std::int64_t number_of(const Json& from, std::string_view name) const {
    if (from.as_int() == nullptr) throw bad(name, "an integer", from);
    return *from.as_int();
  }

  std::string place_;
  const Json& json_;
};

Json json_of(const std::string& place, const std::string& text) {
  try {
    return parse_json(text);
  } catch (const Error& error) {
    throw error.in(cat(place, ": metadata"));
  }
}

// Returns the names of the parameters.
std::vector<std::string> names_in(const std::string& path, const std::string& text) {
  const Json list = json_of(cat(path, ": ", kNames), text);
  std::vector<std::string> out;
  const Json::Array* const names = list.as_array();
  for (std::size_t i = 0; names != nullptr && i < names->size(); ++i) {
    if ((*names)[i].as_string() != nullptr) out.push_back(*(*names)[i].as_string());
  }
  if (names == nullptr || out.size() != names->size())
    throw Error(ErrorCode::kJson, cat(path, ": metadata: ", kNames, " is not a list of names"));
  return out;
}

// Sets what shares a scale: blocks of these sizes in a tensor of that shape.
void share(const Description& of, const Shape& blocks, const Shape& shape, Scheme& scheme) {
  bool fits = blocks.size() == shape.size() && !shape.empty();
  for (std::size_t d = 0; fits && d < shape.size(); ++d)
    fits = blocks[d] > 0 && shape[d] % blocks[d] == 0;
  if (!fits) {
    throw of.unlike_text(cat("metadata has a block_size of ", shape_text(blocks),
                             ", which does not divide a tensor of ", shape_text(shape)));
  }
  if (blocks == shape) {
    scheme.sharing = Sharing::kTensor;
    return;
  }
  const std::size_t last = shape.size() - 1;
  for (std::size_t d = 0; d + 1 < last; ++d) {
    if (blocks[d] != 1)
      throw of.unsupported(cat("blocks of ", shape_text(blocks), ", in more than two dimensions"));
  }
  scheme.columns = blocks[last];
  scheme.rows = last == 0 ? 1 : blocks[last - 1];
  scheme.sharing = scheme.rows != 1                ? Sharing::kBlocks
                   : scheme.columns == shape[last] ? Sharing::kRows
                                                   : Sharing::kGroups;
}

// Returns scales in the order of rows and columns, whose tiles follow each other.
arrays::Array in_rows(const Description& of, const arrays::Array& tiles, const Shape& weight,
                      std::int64_t group) {
  const auto up = [](std::int64_t size, std::int64_t by) { return size / by + (size % by != 0); };
  Shape leading(weight.begin(), weight.end() - 1);
  const std::uint64_t rows = volume({leading, leading});
  const std::int64_t columns = weight.back() / group;
  const std::int64_t down = up(static_cast<std::int64_t>(rows), kTileRows);
  const std::int64_t across = up(columns, kTileColumns);
  const Shape stored = {down, across, kTileLines, kTileRows / kTileLines, kTileColumns};
  arrays::check_bytes(stored, tiles.dtype);
  if (numel_of(tiles) != volume({stored, stored})) {
    throw of.unlike_text(unlike("swizzled scales", tiles,
                                cat(volume({stored, stored}), " elements in tiles of 128 x 4")));
  }
  const arrays::Array lines =
      arrays::permuted(arrays::reshaped(tiles, stored), std::array<std::size_t, 5>{0, 3, 2, 1, 4});
  const arrays::Array padded =
      arrays::reshaped(lines, Shape{down * kTileRows, across * kTileColumns});
  leading.push_back(columns);
  return arrays::reshaped(
      arrays::sliced(arrays::sliced(padded, 0, 0, static_cast<std::int64_t>(rows)), 1, 0, columns),
      leading);
}

// Returns the scheme.  `shape`: of the numbers as they are stored; becomes that of the weight.
Scheme scheme_of(const Description& of, Shape& shape) {
  const std::string type = of.type();
  Scheme scheme;
  if (type == "Float8Tensor") {
    share(of, of.sizes("block_size"), shape, scheme);
  } else if (type == "Int8Tensor" || type == "IntxUnpackedToInt8Tensor") {
    scheme.numbers = NumberKind::kInteger;
    const std::vector<std::string> tensors = of.tensors();
    scheme.symmetric = std::ranges::find(tensors, "zero_point") == tensors.end();
    share(of, of.sizes("block_size"), shape, scheme);
    scheme.name = scheme_text(scheme);
    if (type != "Int8Tensor") scheme.name = cat(of.dtype("target_dtype"), " as ", scheme.name);
    return scheme;
  } else if (type == "MXTensor" || type == "NVFP4Tensor") {
    scheme.powers = type == "MXTensor";
    scheme.second_scale = !scheme.powers && [&] {
      const std::vector<std::string> tensors = of.tensors();
      return std::ranges::find(tensors, "per_tensor_scale") != tensors.end();
    }();
    const std::string numbers = scheme.powers ? of.dtype("elem_dtype") : "float4_e2m1fn_x2";
    const auto dtype = dtype_from_torch_name(numbers);
    if (!dtype || (*dtype != DType::kFloat4E2M1FNx2 && !is_float8(*dtype)))
      throw of.unsupported(cat("elem_dtype is ", quote(numbers, 100),
                               ", known are 8-bit floats and float4_e2m1fn_x2"));
    scheme.bits = *dtype == DType::kFloat4E2M1FNx2 ? 4 : 8;
    if (scheme.bits == 4 &&
        (shape.empty() || __builtin_mul_overflow(shape.back(), 2, &shape.back())))
      throw of.unlike_text("numbers have no dimension, or too large a one");
    scheme.sharing = Sharing::kGroups;
    scheme.columns = of.number("block_size");
    if (shape.empty() || scheme.columns < 1 || shape.back() % scheme.columns != 0) {
      throw of.unlike_text(cat("metadata has a block_size of ", scheme.columns,
                               ", which does not divide the rows of ", shape_text(shape)));
    }
  } else {
    throw of.unsupported(
        cat("is of torchao's class ", quote(type, 100),
            ", which torchao itself does not dequantize on a processor; known are Float8Tensor, "
            "Int8Tensor, IntxUnpackedToInt8Tensor, MXTensor and NVFP4Tensor"));
  }
  scheme.name = scheme_text(scheme);
  return scheme;
}

}  // namespace

TorchaoTensors torchao_tensors(
    const std::string& path, const Texts& given,
    const std::function<std::optional<arrays::Array>(const std::string& name)>& tensor) {
  std::map<std::string, std::string> texts;
  for (const auto& [name, text] : given) {
    const auto [at, added] = texts.emplace(name, text);
    if (!added && at->second != text) {
      throw Error(ErrorCode::kMismatch,
                  cat(path, ": two files have other metadata of ", quote(at->first, 200)));
    }
  }
  const auto named = texts.find(std::string(kNames));
  if (named == texts.end()) {
    throw Error(ErrorCode::kNotFound,
                cat(path, ": no metadata of torchao (", kNames,
                    ") beside the tensors; torch.save files hold its objects, which transformers "
                    "reads, and whose save_pretrained() writes safetensors"));
  }
  TorchaoTensors out;
  for (const std::string& name : names_in(path, named->second)) {
    const std::string place = cat(path, ": ", quote(name, 200));
    const auto text = texts.find(name);
    const std::size_t dot = name.rfind('.');
    if (text == texts.end() || dot == std::string::npos)
      throw Error(ErrorCode::kNotFound, cat(place, " has no metadata, and ", kNames, " lists it"));
    const Json json = json_of(place, text->second);
    const Description of(place, json);
    if (of.type() == kPlain) continue;
    TorchaoWeight weight{.name = name, .scheme = {}, .stored = {}, .names = {}};
    const std::string front = cat(name.substr(0, dot), "._", name.substr(dot + 1), "_");
    for (const std::string& part : of.tensors()) {
      std::string key = front + part;
      auto array = tensor(key);
      if (!array)
        throw Error(ErrorCode::kNotFound, cat(place, ": metadata names ", quote(key, 200),
                                              ", and there is no such tensor"));
      const auto* const role =
          std::ranges::find(kRoles, part, &std::pair<std::string_view, Role>::first);
      if (std::ranges::find(kActivationParts, part) != kActivationParts.end()) {
        out.of_activations.insert(std::move(key));
        continue;
      }
      if (role == kRoles.end())
        throw of.unsupported(cat("has a tensor ", quote(part, 100), ", which is not read"));
      if (role->second == Role::kNumbers) weight.stored.name = key;
      weight.stored.parts.emplace(role->second, std::move(*array));
      weight.names.emplace(role->second, key);
      out.parts.insert(std::move(key));
    }
    if (weight.stored.find(Role::kNumbers) == nullptr ||
        weight.stored.find(Role::kScales) == nullptr)
      throw of.unlike_text("metadata names no qdata or no scale");
    Shape shape = weight.stored.at(Role::kNumbers).shape;
    weight.scheme = scheme_of(of, shape);
    if ((weight.scheme.powers || weight.scheme.second_scale || weight.scheme.bits == 4) &&
        of.flag("is_swizzled_scales")) {
      arrays::Array& scales = weight.stored.parts.at(Role::kScales);
      scales = in_rows(of, scales, shape, weight.scheme.columns);
    }
    std::string numbers = weight.stored.name;
    out.parts.erase(numbers);
    out.weights.emplace(std::move(numbers), std::move(weight));
  }
  return out;
}

}  // namespace fsdp::formats::quantized
