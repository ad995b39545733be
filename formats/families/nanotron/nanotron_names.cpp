// SPDX-License-Identifier: Apache-2.0
#include "formats/families/nanotron/nanotron_names.h"

#include <algorithm>
#include <charconv>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/trainers/ranks.h"

namespace fsdp::formats::nanotron {
namespace {

constexpr std::string_view kPrefix = "model_";
constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kPairs = "local_global_slices_pairs";
constexpr std::string_view kShape = "unsharded_shape";
constexpr std::string_view kVersion = "version";

bool take(std::string_view& text, std::string_view front) {
  if (!text.starts_with(front)) return false;
  text.remove_prefix(front.size());
  return true;
}

std::optional<std::int64_t> take_number(std::string_view& text) {
  std::uint64_t number = 0;  // no sign is read
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number > INT64_MAX) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return static_cast<std::int64_t>(number);
}

// Takes "<word>3-of-4".
bool take_rank(std::string_view& text, std::string_view word, std::int64_t& rank,
               std::int64_t& ranks) {
  if (!take(text, word)) return false;
  const auto own = take_number(text);
  if (!own || !take(text, "-of-")) return false;
  const auto all = take_number(text);
  if (!all || *all < 1 || *all > kMaxRanks || *own >= *all) return false;
  rank = *own, ranks = *all;
  return true;
}

std::vector<std::string_view> divided(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

const std::string& member_of(const std::vector<std::pair<std::string, std::string>>& metadata,
                             std::string_view name) {
  const auto found = std::ranges::find(metadata, name, &std::pair<std::string, std::string>::first);
  if (found != metadata.end()) return found->second;
  throw Error(ErrorCode::kStMetadata,
              cat("has no ", quote(std::string(name)), ", which nanotron writes for each rank"));
}

Error unreadable(std::string_view name, std::string_view text, std::string_view why) {
  return {ErrorCode::kStMetadata,
          cat(quote(std::string(name)), " is ", quote(std::string(text), 200), ": ", why)};
}

// Reads "(24, 12)", "(24,)" and, of numpy 2, "(np.int64(24), 12)".
std::vector<std::int64_t> shape_of(std::string_view whole) {
  std::string_view text = whole;
  std::vector<std::int64_t> shape;
  if (!take(text, "(")) throw unreadable(kShape, whole, "expected a tuple");
  while (!take(text, ")")) {
    if (!shape.empty() && !take(text, ", ") && !(shape.size() == 1 && text == ",)"))
      throw unreadable(kShape, whole, "expected a comma");
    if (take(text, ",)")) break;
    const bool numpy = take(text, "np.int64(");
    const auto number = take_number(text);
    if (!number || (numpy && !take(text, ")")))
      throw unreadable(kShape, whole, "expected whole numbers");
    shape.push_back(*number);
  }
  if (!text.empty()) throw unreadable(kShape, whole, "expected nothing after the tuple");
  return shape;
}

// Reads "0,10,None|None,None,None" for a tensor of this shape.
Box box_of(std::string_view text, std::span<const std::int64_t> shape) {
  const std::vector<std::string_view> slices = divided(text, '|');
  if (slices.size() != shape.size())
    throw unreadable(kPairs, text, cat("expected ", shape.size(), " slices"));
  Box box;
  for (std::size_t d = 0; d < slices.size(); ++d) {
    const std::vector<std::string_view> parts = divided(slices[d], ',');
    if (parts.size() != 3) throw unreadable(kPairs, text, "expected start, stop and step");
    const auto bound = [&](std::string_view part, std::int64_t otherwise) {
      if (part == "None") return otherwise;
      const auto number = take_number(part);
      if (!number || !part.empty()) throw unreadable(kPairs, text, "expected numbers or None");
      return *number;
    };
    const std::int64_t begin = bound(parts[0], 0);
    const std::int64_t end = bound(parts[1], shape[d]);
    if (bound(parts[2], 1) != 1) throw unreadable(kPairs, text, "steps other than 1 are not read");
    if (begin > end || end > shape[d])
      throw unreadable(kPairs, text, cat("is not inside ", shape_text(shape)));
    box.offset.push_back(begin);
    box.size.push_back(end - begin);
  }
  return box;
}

}  // namespace

std::optional<ParameterFile> parameter_file(std::string_view name) {
  if (!take(name, kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  ParameterFile file;
  const std::size_t at = name.rfind("_pp-rank-");
  file.name = name.substr(0, at);
  if (file.name.empty()) return std::nullopt;
  if (at == name.npos) return file;
  name.remove_prefix(at);
  Ranks rank;
  if (!take_rank(name, "_pp-rank-", rank.stage, rank.stages) ||
      !take_rank(name, "_tp-rank-", rank.tensor, rank.tensors))
    return std::nullopt;
  if (!name.empty() && !take_rank(name, "_exp-rank-", rank.expert, rank.experts))
    return std::nullopt;
  if (!name.empty() || rank.count() > kMaxRanks) return std::nullopt;
  file.rank = rank;
  return file;
}

bool is_of_one_rank(std::string_view name) {
  if (name.find("_dp-") != name.npos) return false;
  const std::size_t at = name.find("_pp-");
  if (at == name.npos) return true;
  name.remove_prefix(at);
  Ranks rank;
  return take_rank(name, "_pp-", rank.stage, rank.stages) &&
         take_rank(name, "_tp-", rank.tensor, rank.tensors) && rank.stages == 1 &&
         rank.tensors == 1 && (name == ".pt" || name == "_exp-0-of-1.pt");
}

ShardSlices shard_slices(const std::vector<std::pair<std::string, std::string>>& metadata,
                         std::span<const std::int64_t> local) {
  ShardSlices slices{member_of(metadata, kVersion), shape_of(member_of(metadata, kShape)), {}};
  const std::string& text = member_of(metadata, kPairs);
  for (const std::string_view pair : divided(text, ';')) {
    const std::vector<std::string_view> sides = divided(pair, '#');
    if (sides.size() != 2) throw unreadable(kPairs, text, "expected pairs divided by #");
    Box own = box_of(sides[0], local);
    Box whole = box_of(sides[1], slices.shape);
    if (own.size != whole.size)
      throw unreadable(kPairs, pair, "has another size in the file than in the parameter");
    slices.pairs.emplace_back(std::move(own), std::move(whole));
  }
  return slices;
}

}  // namespace fsdp::formats::nanotron
