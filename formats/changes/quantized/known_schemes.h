// SPDX-License-Identifier: Apache-2.0
// The schemes and dialects that weights can be quantized to, by their words.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/changes/quantized/scheme.h"

namespace fsdp::formats::quantized {

// A scheme by its word, and how a configuration of compressed-tensors describes it.
struct KnownScheme {
  std::string_view word;
  Scheme scheme;
  std::string_view preset;  // the name of the preset
  std::string_view format;
  std::string_view algorithm;  // of modelopt; empty: it has none
};

inline constexpr std::array<std::string_view, 3> kDialectWords = {"compressed-tensors", "modelopt",
                                                                  "transformers"};

// Returns the dialect of a word; compressed-tensors for an empty one, nothing for another.
std::optional<Dialect> dialect_named(std::string_view word);

// Returns the words of the schemes of a dialect.
std::vector<std::string_view> scheme_words(Dialect dialect);

// Returns a scheme of a dialect by its word.  `group`: elements of a row that share a scale.
// Throws: kUsage for an unknown word, and for a size of groups that the scheme does not have or
// that the dialect's configuration cannot say.
KnownScheme known_scheme(Dialect dialect, std::string_view word,
                         std::optional<std::int64_t> group = std::nullopt);

}  // namespace fsdp::formats::quantized
