// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/known_schemes.h"

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"

namespace fsdp::formats::quantized {
namespace {

constexpr std::int64_t kSchemeBlock = 128;
constexpr std::int64_t kSchemeGroup = 128;

std::array<KnownScheme, 10> known_schemes() {
  const auto integer = NumberKind::kInteger;
  return {{
      {"fp8-tensor", {}, "FP8", "float-quantized", "FP8"},
      {"fp8-channel",
       {.sharing = Sharing::kRows},
       "FP8_DYNAMIC",
       "float-quantized",
       "FP8_PER_CHANNEL_PER_TOKEN"},
      {"fp8-block",
       {.sharing = Sharing::kBlocks, .rows = kSchemeBlock, .columns = kSchemeBlock},
       "FP8_BLOCK",
       "float-quantized",
       "fp8_pb_wo"},
      {"mxfp8",
       {.sharing = Sharing::kGroups, .columns = 32, .powers = true},
       "MXFP8",
       "mxfp8-quantized",
       "MXFP8"},
      {"mxfp4",
       {.bits = 4, .sharing = Sharing::kGroups, .columns = 32, .powers = true},
       "MXFP4A16",
       "mxfp4-pack-quantized",
       "mxfp4"},
      {"nvfp4",
       {.bits = 4, .sharing = Sharing::kGroups, .columns = 16, .second_scale = true},
       "NVFP4A16",
       "nvfp4-pack-quantized",
       "W4A16_NVFP4"},
      {"int8", {.numbers = integer, .sharing = Sharing::kRows}, "W8A8", "int-quantized", "W8A16"},
      {"int8-group",
       {.numbers = integer, .sharing = Sharing::kGroups, .columns = kSchemeGroup},
       "W8A16",
       "pack-quantized",
       ""},
      {"int4",
       {.numbers = integer, .bits = 4, .sharing = Sharing::kGroups, .columns = kSchemeGroup},
       "W4A16",
       "pack-quantized",
       "W4A16_AWQ"},
      {"int4-asym",
       {.numbers = integer,
        .bits = 4,
        .sharing = Sharing::kGroups,
        .columns = kSchemeGroup,
        .symmetric = false},
       "W4A16_ASYM",
       "pack-quantized",
       ""},
  }};
}

// Returns whether a scheme has groups of any size: the other sizes belong to their formats.
bool has_any_group(const Scheme& scheme) {
  return scheme.numbers == NumberKind::kInteger && scheme.sharing == Sharing::kGroups;
}

// Sets the size of the groups.
void set_group(KnownScheme& known, Dialect dialect, std::int64_t size) {
  if (!has_any_group(known.scheme)) {
    std::string words;
    for (const KnownScheme& one : known_schemes())
      if (has_any_group(one.scheme)) words += cat(words.empty() ? "" : ", ", one.word);
    throw Error(ErrorCode::kUsage,
                cat(known.word, " has no groups of other sizes than its format's; ",
                    "these have: ", words));
  }
  if (dialect == Dialect::kModelOpt && size != known.scheme.columns) {
    throw Error(ErrorCode::kUsage,
                cat("the configuration of modelopt does not say the size of ", known.word,
                    "'s groups, and its readers take ", known.scheme.columns,
                    "; --quantize-dialect compressed-tensors writes groups of ", size));
  }
  known.scheme.columns = size;
}

bool takes(Dialect dialect, const KnownScheme& known) {
  if (dialect == Dialect::kTransformersFp8) return known.word == "fp8-block";
  return dialect != Dialect::kModelOpt || !known.algorithm.empty();
}

}  // namespace

std::optional<Dialect> dialect_named(std::string_view word) {
  if (word.empty() || word == kDialectWords[0]) return Dialect::kCompressedTensors;
  if (word == kDialectWords[1]) return Dialect::kModelOpt;
  if (word == kDialectWords[2]) return Dialect::kTransformersFp8;
  return std::nullopt;
}

std::vector<std::string_view> scheme_words(Dialect dialect) {
  std::vector<std::string_view> out;
  for (const KnownScheme& known : known_schemes()) {
    if (takes(dialect, known)) out.push_back(known.word);
  }
  return out;
}

KnownScheme known_scheme(Dialect dialect, std::string_view word,
                         std::optional<std::int64_t> group) {
  std::string words;
  for (KnownScheme& known : known_schemes()) {
    if (!takes(dialect, known)) continue;
    if (known.word != word) {
      words += cat(words.empty() ? "" : ", ", known.word);
      continue;
    }
    if (group) set_group(known, dialect, *group);
    return known;
  }
  throw Error(ErrorCode::kUsage,
              cat("no scheme ", quote(word, 100), " of this dialect; there are ", words));
}

}  // namespace fsdp::formats::quantized
