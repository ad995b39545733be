// SPDX-License-Identifier: Apache-2.0
#include "tools/base/dtype_word.h"

#include <array>
#include <string_view>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::DType;

constexpr std::array<std::pair<std::string_view, DType>, 4> kShortForms = {
    {{"bf16", DType::kBFloat16},
     {"fp16", DType::kFloat16},
     {"fp32", DType::kFloat32},
     {"fp64", DType::kFloat64}}};
constexpr std::string_view kRemedy =
    "; use bfloat16, float16, float32, float64 or an 8-bit float such as float8_e4m3fn";

}  // namespace

DType floating_dtype(const std::string& word) {
  auto dtype = formats::dtype_from_torch_name(word);
  for (const auto& [name, meant] : kShortForms) {
    if (name == word) dtype = meant;
  }
  if (!dtype)
    throw Error(ErrorCode::kUsage, cat("--dtype: unknown dtype ", formats::quote(word), kRemedy));
  if (!formats::is_floating(*dtype)) {
    throw Error(ErrorCode::kUsage,
                cat("--dtype: ", formats::quote(word), " is not a floating-point dtype", kRemedy));
  }
  return *dtype;
}

std::vector<std::string> floating_words() {
  std::vector<std::string> words;
  for (const auto& [name, meant] : kShortForms) words.emplace_back(name);
  for (std::uint8_t i = 0; i <= static_cast<std::uint8_t>(DType::kQUInt2x4); ++i) {
    const auto dtype = static_cast<DType>(i);
    if (formats::is_floating(dtype)) words.emplace_back(formats::torch_name(dtype));
  }
  return words;
}

}  // namespace fsdp::cli
