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
#include "formats/changes/quantized/torchao_description.h"

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

bool is_wide_float(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

// Refuses scales, or zero points, that torchao itself does not multiply with, or in another way.
void check_factors(const Description& of, const TorchaoWeight& weight, const Shape& shape) {
  const arrays::Array& scales = weight.stored.at(Role::kScales);
  const std::string type = of.type();
  const bool powers = type == "MXTensor";
  if (powers || type == "NVFP4Tensor") {
    const DType expected = powers ? DType::kFloat8E8M0FNU : DType::kFloat8E4M3FN;
    if (scales.dtype != expected)
      throw of.unlike_text(unlike("scales", scales, torch_name(expected)));
    const arrays::Array* const second = weight.stored.find(Role::kSecond);
    if (second != nullptr && !second->shape.empty() && second->shape != Shape{1, 1, 1})
      throw of.unlike_text(unlike("per_tensor_scale", *second, "one number, of shape []"));
    return;
  }
  if (!is_wide_float(scales.dtype))
    throw of.unlike_text(unlike("scales", scales, "float32, float16 or bfloat16"));
  if (type == "Int8Tensor") return;  // of any shape with as many elements
  Shape counts = of.sizes("block_size");
  for (std::size_t d = 0; d < counts.size(); ++d) counts[d] = shape[d] / counts[d];
  const auto fits = [&](const arrays::Array& factors) {
    const bool one = type == "Float8Tensor" && weight.scheme.sharing == Sharing::kTensor;
    return factors.shape == counts || (one && factors.shape.size() <= counts.size());
  };
  if (!fits(scales)) throw of.unlike_text(unlike("scales", scales, shape_text(counts)));
  const arrays::Array* const zeros = weight.stored.find(Role::kZeros);
  if (zeros != nullptr && !fits(*zeros))
    throw of.unlike_text(unlike("zero points", *zeros, shape_text(counts)));
}

Scheme integer_scheme(const Description& of, const Shape& shape) {
  Scheme scheme{.numbers = NumberKind::kInteger, .symmetric = !of.has("zero_point")};
  share(of, of.sizes("block_size"), shape, scheme);
  scheme.name = scheme_text(scheme);
  if (of.type() == "Int8Tensor") return scheme;
  const std::string target = of.dtype("target_dtype");
  if (target.size() != 4 || !target.starts_with("int") || target[3] < '1' || target[3] > '8')
    throw of.unsupported(cat("target_dtype is ", quote(target, 100), ", known are int1 to int8"));
  scheme.name = cat(target, " as ", scheme.name);
  return scheme;
}

// Returns the scheme of groups of a row.  `shape`: see scheme_of.
Scheme microscaled_scheme(const Description& of, const arrays::Array& numbers, Shape& shape) {
  Scheme scheme{.bits = 4, .sharing = Sharing::kGroups};
  scheme.powers = of.type() == "MXTensor";
  scheme.second_scale = of.has("per_tensor_scale");
  if (scheme.powers) {
    const std::string told = of.dtype("elem_dtype");
    const auto dtype = dtype_from_torch_name(told);
    if (dtype != DType::kFloat4E2M1FNx2 && dtype != DType::kFloat8E4M3FN &&
        dtype != DType::kFloat8E5M2) {
      throw of.unsupported(cat("elem_dtype is ", quote(told, 100),
                               ", known are float8_e4m3fn, float8_e5m2 and float4_e2m1fn_x2"));
    }
    if (dtype != DType::kFloat4E2M1FNx2) scheme.bits = 8;
    const DType stored = scheme.bits == 4 ? DType::kUInt8 : *dtype;
    if (numbers.dtype != stored)
      throw of.unlike_text(unlike("numbers", numbers, torch_name(stored)));
  }
  if (shape.size() < 2) throw of.unlike_text(unlike("numbers", numbers, "at least two dimensions"));
  if (scheme.bits == 4 && __builtin_mul_overflow(shape.back(), 2, &shape.back()))
    throw of.unlike_text("numbers have too large a dimension");
  scheme.columns = of.number("block_size");
  if (scheme.columns < 1 || shape.back() % scheme.columns != 0) {
    throw of.unlike_text(cat("metadata has a block_size of ", scheme.columns,
                             ", which does not divide the rows of ", shape_text(shape)));
  }
  scheme.name = scheme_text(scheme);
  return scheme;
}

// Returns the scheme.  `shape`: of the numbers as they are stored; becomes that of the weight.
Scheme scheme_of(const Description& of, const arrays::Array& numbers, Shape& shape) {
  const std::string type = of.type();
  const bool groups = type == "MXTensor" || type == "NVFP4Tensor";
  const std::string dtype = of.dtype(groups ? "orig_dtype" : "dtype");
  if (const auto known = dtype_from_torch_name(dtype); !known || !is_wide_float(*known)) {
    throw of.unsupported(
        cat("its dtype is ", quote(dtype, 100), ", known are float32, float16 and bfloat16"));
  }
  if (groups) return microscaled_scheme(of, numbers, shape);
  if (type != "Float8Tensor") return integer_scheme(of, shape);
  Scheme scheme;
  share(of, of.sizes("block_size"), shape, scheme);
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
    of.check_class();
    TorchaoWeight weight{.name = name, .scheme = {}, .stored = {}, .names = {}};
    const std::string front = cat(name.substr(0, dot), "._", name.substr(dot + 1), "_");
    if (!out.fronts.insert(front).second) throw of.unlike_text(cat(kNames, " lists it twice"));
    for (const std::string& part : of.tensors()) {
      std::string key = front + part;
      auto array = tensor(key);
      if (!array)
        throw Error(ErrorCode::kNotFound, cat(place, ": metadata names ", quote(key, 200),
                                              ", and there is no such tensor"));
      const auto* const role =
          std::ranges::find(kRoles, part, &std::pair<std::string_view, Role>::first);
      if (role == kRoles.end()) {
        out.of_activations.insert(std::move(key));
        continue;
      }
      if (role->second == Role::kNumbers) weight.stored.name = key;
      weight.stored.parts.emplace(role->second, std::move(*array));
      weight.names.emplace(role->second, key);
      out.parts.insert(std::move(key));
    }
    const arrays::Array& stored = weight.stored.at(Role::kNumbers);
    Shape shape = stored.shape;
    weight.scheme = scheme_of(of, stored, shape);
    check_factors(of, weight, shape);
    if (weight.scheme.powers || weight.scheme.bits == 4) {
      arrays::Array& scales = weight.stored.parts.at(Role::kScales);
      if (of.flag("is_swizzled_scales")) scales = in_rows(of, scales, shape, weight.scheme.columns);
    }
    std::string numbers = weight.stored.name;
    out.parts.erase(numbers);
    out.weights.emplace(std::move(numbers), std::move(weight));
  }
  return out;
}

}  // namespace fsdp::formats::quantized
