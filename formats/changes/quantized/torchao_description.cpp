// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/torchao_description.h"

#include <algorithm>
#include <array>

#include "formats/bytes/base/text.h"

namespace fsdp::formats::quantized {
namespace {

// Lists are of words between spaces.  "?" ends a name that may be missing.
struct KnownClass {
  std::string_view name;
  std::string_view tensors;
  std::string_view members;
};
constexpr std::array<KnownClass, 5> kClasses = {{
    {"Float8Tensor", "qdata scale",
     "block_size dtype mm_config? act_quant_kwargs? kernel_preference?"},
    {"Int8Tensor", "qdata scale zero_point? act_quant_scale? act_quant_zero_point?",
     "block_size dtype act_quant_kwargs? reduce_range?"},
    {"IntxUnpackedToInt8Tensor", "qdata scale zero_point",
     "block_size dtype target_dtype activation_quantization"},
    {"MXTensor", "qdata scale",
     "block_size orig_dtype elem_dtype is_swizzled_scales kernel_preference act_quant_kwargs"},
    {"NVFP4Tensor", "qdata scale per_tensor_scale? act_per_tensor_scale?",
     "block_size orig_dtype is_swizzled_scales use_triton_kernel? act_quant_kwargs?"},
}};

// Returns the words of a list that lack something in `have`, and the words of `have` that the list
// lacks.
struct Compared {
  std::vector<std::string> missing;
  std::vector<std::string> unknown;
};
Compared compared(std::string_view list, const std::vector<std::string>& have) {
  Compared out;
  std::vector<std::string_view> known;
  while (!list.empty()) {
    std::string_view word = list.substr(0, list.find(' '));
    list.remove_prefix(std::min(word.size() + 1, list.size()));
    const bool optional = word.ends_with('?');
    if (optional) word.remove_suffix(1);
    known.push_back(word);
    if (!optional && std::ranges::find(have, word) == have.end()) out.missing.emplace_back(word);
  }
  for (const std::string& one : have) {
    if (std::ranges::find(known, one) == known.end()) out.unknown.push_back(one);
  }
  return out;
}

}  // namespace

std::string Description::type() const {
  return text_of(member(json_, "_type"), "_type");
}

std::vector<std::string> Description::tensors() const {
  constexpr std::string_view kName = "_tensor_data_names";
  const Json& found = member(json_, kName);
  if (found.as_array() == nullptr) throw bad(kName, "a list", found);
  std::vector<std::string> out;
  for (const Json& one : *found.as_array()) {
    out.push_back(text_of(one, kName));
    if (std::find(out.begin(), out.end() - 1, out.back()) != out.end() - 1)
      throw unlike_text(cat("metadata: ", kName, " has ", quote(out.back(), 100), " twice"));
  }
  return out;
}

void Description::check_class() const {
  const std::string name = type();
  const auto* const known = std::ranges::find(kClasses, name, &KnownClass::name);
  if (known == kClasses.end()) {
    throw unsupported(
        cat("is of torchao's class ", quote(name, 100),
            ", which torchao itself does not dequantize on a processor; known are Float8Tensor, "
            "Int8Tensor, IntxUnpackedToInt8Tensor, MXTensor and NVFP4Tensor"));
  }
  const Compared tensors = compared(known->tensors, this->tensors());
  if (!tensors.missing.empty())
    throw unlike_text(cat("metadata: a ", name, " has a tensor ", tensors.missing[0],
                          ", and _tensor_data_names does not list it"));
  if (!tensors.unknown.empty())
    throw unsupported(
        cat("has a tensor ", quote(tensors.unknown[0], 100), ", which is not read of a ", name));
  const Json& data = member(json_, "_data");
  if (data.as_object() == nullptr) throw bad("_data", "an object", data);
  std::vector<std::string> have;
  for (const auto& [member, value] : *data.as_object()) have.push_back(member);
  const Compared members = compared(known->members, have);
  if (!members.missing.empty())
    throw Error(ErrorCode::kJson, cat(place_, ": metadata has no ", members.missing[0]));
  if (!members.unknown.empty())
    throw unsupported(cat("metadata has a member ", quote(members.unknown[0], 100), ", which a ",
                          name, " of torchao 0.18 does not have"));
}

bool Description::has(std::string_view name) const {
  const std::vector<std::string> names = tensors();
  return std::ranges::find(names, name) != names.end();
}

std::string Description::dtype(std::string_view name) const {
  const Json& found = data(name);
  if (found.as_string() != nullptr) return *found.as_string();  // fp6_e2m3, which PyTorch lacks
  if (text_of(member(found, "_type"), name) != "torch.dtype")
    throw unsupported(cat("metadata: ", name, " is not a torch.dtype"));
  return text_of(member(found, "_data"), name);
}

std::int64_t Description::number(std::string_view name) const {
  return number_of(data(name), name);
}

Shape Description::sizes(std::string_view name) const {
  const Json& found = data(name);
  if (found.as_array() == nullptr) throw bad(name, "a list of sizes", found);
  Shape out;
  for (const Json& one : *found.as_array()) out.push_back(number_of(one, name));
  return out;
}

bool Description::flag(std::string_view name) const {
  const Json& found = data(name);
  if (found.as_bool() == nullptr) throw bad(name, "true or false", found);
  return *found.as_bool();
}

Error Description::unlike_text(const std::string& what) const {
  return {ErrorCode::kMismatch, cat(place_, ": ", what)};
}

Error Description::unsupported(const std::string& what) const {
  return {ErrorCode::kUnsupported, cat(place_, ": ", what)};
}

Error Description::bad(std::string_view name, const char* wanted, const Json& found) const {
  return {ErrorCode::kJson,
          cat(place_, ": metadata: ", name, " is ", json_kind(found), ", expected ", wanted)};
}

const Json& Description::member(const Json& from, std::string_view name) const {
  const Json* const found = from.find(name);
  if (found == nullptr) throw Error(ErrorCode::kJson, cat(place_, ": metadata has no ", name));
  return *found;
}

std::string Description::text_of(const Json& from, std::string_view name) const {
  if (from.as_string() == nullptr) throw bad(name, "a string", from);
  return *from.as_string();
}

std::int64_t Description::number_of(const Json& from, std::string_view name) const {
  if (from.as_int() == nullptr) throw bad(name, "an integer", from);
  return *from.as_int();
}

}  // namespace fsdp::formats::quantized
