// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/megatron/bucket_layout.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/arrays/computed.h"
#include "formats/changes/arrays/scratch.h"
#include "formats/changes/megatron/names.h"

namespace fsdp::formats::megatron {
namespace {

// A parameter begins at a multiple of so many elements (pad_param_start).
constexpr std::int64_t kAlignment = 64;
// Elements that are hashed, to compare few parameters as a whole.
constexpr std::int64_t kHashedNumel = 256;
// Parameters that may stand at the places of a buffer, counted for each place: a model in which so
// many hold the same elements was not trained.
constexpr std::size_t kMostCandidates = std::size_t{1} << 22U;
// Rounds in which places tell more about others; each settles at least one.
constexpr int kMostRounds = 1000;

std::size_t hash_of(const arrays::ArrayReader& reader, DType dtype, std::int64_t first,
                    std::int64_t numel) {
  const arrays::Scratch scratch;
  const auto count = static_cast<std::size_t>(std::min(numel, kHashedNumel));
  const auto bytes = scratch.first(count * item_bytes(dtype));
  reader.read_as(dtype, static_cast<std::uint64_t>(first), bytes);
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

arrays::Array boxed(const arrays::Array& array, const Box& box) {
  arrays::Array out = array;
  for (std::size_t d = 0; d < box.size.size(); ++d)
    out = arrays::sliced(out, d, box.offset[d], box.size[d]);
  const std::vector<std::int64_t> flat = {static_cast<std::int64_t>(volume(box.view()))};
  return arrays::reshaped(out, flat);
}

void add_part(const arrays::Array& array, RankPart part, std::vector<RankPart>& out) {
  std::vector<arrays::Array> pieces;
  for (const Box& box : part.boxes) pieces.push_back(boxed(array, box));
  part.elements = arrays::concatenated(pieces, 0);
  out.push_back(std::move(part));
}

// The layer of a parameter, and what is equal in all layers.
struct Slot {
  std::optional<std::int64_t> layer;
  std::pair<std::string, std::string> kind;  // the name before the layer's number, and behind it
};
Slot slot_of(const std::string& name) {
  const auto layer = layer_of(name);
  if (!layer || !layer->number) return {{}, {name, ""}};
  return {layer->number, {layer->before, layer->after}};
}

}  // namespace

std::vector<RankPart> rank_parts(const std::vector<NamedArray>& model) {
  std::vector<RankPart> out;
  for (std::size_t i = 0; i < model.size(); ++i) {
    const arrays::Array& array = model[i].array;
    if (!is_floating(array.dtype) || numel_of(array) == 0) continue;
    add_part(array, {.parameter = i, .boxes = {whole_box(array.shape)}}, out);
    std::vector<Box> chunks;
    for (const arrays::PlacedPart& part : arrays::placed_parts(array)) chunks.push_back(part.box);
    std::ranges::sort(chunks, {}, &Box::offset);
    const std::size_t count = chunks.size();
    if (count < 2) continue;
    for (std::size_t c = 0; c < count; ++c)
      add_part(array, {.parameter = i, .number = c, .count = count, .boxes = {chunks[c]}}, out);
    if (!is_first_linear(model[i].name) || count % 2 != 0 || count == 2) continue;
    for (std::size_t c = 0; c < count / 2; ++c) {
      add_part(array,
               {.parameter = i,
                .number = c,
                .count = count / 2,
                .boxes = {chunks[c], chunks[count / 2 + c]}},
               out);
    }
  }
  return out;
}

BucketLayout::BucketLayout(const std::vector<NamedArray>& model,
                           const std::vector<std::string>& names, const std::string& path)
    : model_(model), path_(path), parts_(rank_parts(model)) {
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const arrays::Array& elements = parts_[p].elements;
    const std::int64_t numel = elements.shape[0];
    const arrays::ArrayReader reader(elements);
    begins_[numel][elements.dtype][hash_of(reader, elements.dtype, 0, numel)].push_back(p);
    alike_.push_back(p);
  }
  if (names.empty()) return;
  std::unordered_map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < names.size(); ++i) places.emplace(names[i], i);
  for (const NamedArray& one : model) {
    const auto found = places.find(one.name);
    if (found == places.end()) {
      throw Error(ErrorCode::kKey, cat(path, ": ", quote(one.name, 200),
                                       ": is not among the names of the parameters"));
    }
    order_.push_back(found->second);
  }
}

// The search in one buffer.
class BucketLayout::Buffer {
 public:
  Buffer(BucketLayout& layout, const std::vector<Bucket>& buckets)
      : layout_(layout), buckets_(buckets) {}

  std::vector<PartPlace> run() {
    for (bucket_ = 0; bucket_ < buckets_.size(); ++bucket_) {
      const arrays::Array& copy = buckets_[bucket_].states.at(std::string(kMasterState));
      const arrays::ArrayReader reader(copy);
      for (std::int64_t begin = 0; begin < copy.shape[0];)
        begin = find(reader, begin, copy.shape[0]);
    }
    settle();
    return std::move(places_);
  }

 private:
  const std::string& name(std::size_t part) const {
    return layout_.model_[layout_.parts_[part].parameter].name;
  }
  std::size_t order(std::size_t part) const {
    return layout_.order_[layout_.parts_[part].parameter];
  }

  // Adds the place of what begins at an element, and returns the beginning of what follows.
  std::int64_t find(const arrays::ArrayReader& reader, std::int64_t begin, std::int64_t numel) {
    std::vector<std::size_t> found;
    for (const auto& [length, dtypes] : layout_.begins_) {
      if (length > numel - begin) break;
      if (length < numel - begin && next(begin + length) > numel) continue;
      for (const auto& [dtype, hashes] : dtypes) {
        const auto same = hashes.find(hash_of(reader, dtype, begin, length));
        if (same == hashes.end()) continue;
        std::map<std::size_t, bool> equal;  // by what parts are alike
        std::optional<std::size_t> first;   // that is equal
        for (const std::size_t part : same->second) {
          if (taken_.contains(part)) continue;
          std::size_t& alike = layout_.alike_[part];
          auto known = equal.find(alike);
          if (known == equal.end()) known = equal.emplace(alike, holds(reader, begin, part)).first;
          if (!known->second) continue;
          if (!first) first = alike;
          alike = *first;
          found.push_back(part);
        }
      }
    }
    if (found.empty()) {
      throw Error(ErrorCode::kMismatch,
                  cat(path(), ": ", quote(buckets_[bucket_].key, 200), ": at element ", begin,
                      " no parameter of the model begins: none has the elements of the float32 "
                      "copy there, rounded to its dtype"),
                  {Remedy::kExclude, "**optimizer.**"});
    }
    if (!layout_.order_.empty()) keep_nearest(found);
    keep_longest(found);
    if (std::ranges::any_of(found, [&](std::size_t part) { return size(part) != size(found[0]); }))
      throw_ambiguous(found, begin);
    candidate_count_ += found.size();
    if (candidate_count_ > kMostCandidates) throw_ambiguous(found, begin);
    const std::int64_t length = size(found[0]);
    if (found.size() == 1) taken_.insert(found[0]);
    places_.push_back({found[0], bucket_, begin});
    candidates_.push_back(std::move(found));
    return begin + length == numel ? numel : next(begin + length);
  }

  static std::int64_t next(std::int64_t end) {
    return (end + kAlignment - 1) / kAlignment * kAlignment;
  }

  std::int64_t size(std::size_t part) const { return layout_.parts_[part].elements.shape[0]; }

  // Removes parts that are the beginning of another one that is there: a parameter begins as its
  // first chunk.
  void keep_longest(std::vector<std::size_t>& found) const {
    const std::vector<std::size_t> all = found;
    std::erase_if(found, [&](std::size_t part) {
      const RankPart& one = layout_.parts_[part];
      return std::ranges::any_of(all, [&](std::size_t other) {
        const RankPart& more = layout_.parts_[other];
        return more.parameter == one.parameter && size(other) > size(part) &&
               more.boxes[0].offset == one.boxes[0].offset;
      });
    });
  }

  // Keeps the parts of the last parameter before the one that was placed last: buffers are in the
  // reverse order of modules.
  void keep_nearest(std::vector<std::size_t>& found) {
    std::optional<std::size_t> nearest;
    for (const std::size_t part : found) {
      if (order(part) < last_order_ && (!nearest || order(part) > *nearest)) nearest = order(part);
    }
    if (!nearest) {
      throw Error(
          ErrorCode::kRekeyAmbiguous,
          cat(path(), ": ", quote(buckets_[bucket_].key, 200), ": ", quote(name(found[0]), 200),
              " lies behind the parameter before it in the order of names; buffers have "
              "the reverse order"));
    }
    std::erase_if(found, [&](std::size_t part) { return order(part) != *nearest; });
    last_order_ = *nearest;
  }

  // Returns whether the float32 copy at an element, rounded, is that part.
  bool holds(const arrays::ArrayReader& reader, std::int64_t begin, std::size_t part) const {
    const arrays::Array& wanted = layout_.parts_[part].elements;
    const arrays::ArrayReader model(wanted);
    const arrays::Scratch a;
    const arrays::Scratch b;
    const std::size_t item = item_bytes(wanted.dtype);
    const auto numel = static_cast<std::uint64_t>(wanted.shape[0]);
    for (std::uint64_t at = 0; at < numel; at += arrays::kComputedNumel) {
      const std::size_t bytes = std::min<std::uint64_t>(arrays::kComputedNumel, numel - at) * item;
      reader.read_as(wanted.dtype, static_cast<std::uint64_t>(begin) + at, a.first(bytes));
      model.read(at, b.first(bytes));
      if (std::memcmp(a.bytes().data(), b.bytes().data(), bytes) != 0) return false;
    }
    return true;
  }

  // Leaves one candidate at each place.
  void settle() {
    for (int round = 0; round < kMostRounds && narrow(); ++round) {
    }
    for (std::size_t i = 0; i < places_.size(); ++i) {
      bucket_ = places_[i].bucket;
      if (candidates_[i].size() != 1) throw_ambiguous(candidates_[i], places_[i].begin);
      places_[i].part = candidates_[i][0];
    }
  }

  // Removes candidates that contradict the places that are settled.  Returns whether any was.
  bool narrow() {
    learn();
    bool any = false;
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (candidates_[i].size() == 1) continue;
      const std::size_t removed =
          std::erase_if(candidates_[i], [&](std::size_t part) { return !is_possible(i, part); });
      if (candidates_[i].empty()) {
        bucket_ = places_[i].bucket;
        throw Error(
            ErrorCode::kMismatch,
            cat(path(), ": ", quote(buckets_[bucket_].key, 200), ": at element ", places_[i].begin,
                ": the parameters of the model that hold these elements "
                "have other places"),
            {Remedy::kExclude, "**optimizer.**"});
      }
      if (candidates_[i].size() == 1) taken_.insert(candidates_[i][0]);
      any = any || removed != 0;
    }
    return any;
  }

  // Gathers what settled places tell.
  void learn() {
    layers_.clear();
    by_layer_.clear();
    numbers_.clear();
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (candidates_[i].size() != 1) continue;
      const RankPart& part = layout_.parts_[candidates_[i][0]];
      if (part.count > 1) numbers_[part.count].insert(part.number);
      Slot slot = slot_of(name(candidates_[i][0]));
      if (!slot.layer) continue;
      const std::string block = slot.kind.first;
      layers_[block].emplace_back(i, *slot.layer);
      by_layer_[{block, *slot.layer}].emplace(slot.kind, i);
    }
  }

  bool is_possible(std::size_t place, std::size_t part) const {
    if (taken_.contains(part)) return false;
    const RankPart& one = layout_.parts_[part];
    // A rank has the same part of every parameter that is cut into as many.
    const auto numbers = numbers_.find(one.count);
    if (numbers != numbers_.end() && numbers->second.size() == 1 &&
        !numbers->second.contains(one.number))
      return false;
    const Slot slot = slot_of(name(part));
    if (!slot.layer) return true;
    // Layers follow each other, the last one first.
    const auto block = layers_.find(slot.kind.first);
    if (block == layers_.end()) return true;
    for (const auto& [other, layer] : block->second) {
      if (other < place ? layer < *slot.layer : layer > *slot.layer) return false;
    }
    return has_order_of_others(place, slot);
  }

  // Returns whether the place, seen from the other parameters of its layer, is where the other
  // layers have a parameter of this name.
  bool has_order_of_others(std::size_t place, const Slot& slot) const {
    const auto own = by_layer_.find({slot.kind.first, *slot.layer});
    if (own == by_layer_.end()) return true;
    for (const auto& [which, layer] : by_layer_) {
      const auto same = layer.find(slot.kind);
      if (which == own->first || same == layer.end()) continue;
      for (const auto& [kind, other] : own->second) {
        const auto there = layer.find(kind);
        if (there != layer.end() && (there->second < same->second) != (other < place)) return false;
      }
      return true;  // one layer tells the order
    }
    return true;
  }

  const std::string& path() const { return layout_.path_; }

  [[noreturn]] void throw_ambiguous(const std::vector<std::size_t>& parts,
                                    std::int64_t begin) const {
    const auto text = [&](std::size_t part) {
      const RankPart& one = layout_.parts_[part];
      return cat(quote(name(part), 200), one.count > 1 ? cat(" (part ", one.number, ")") : "");
    };
    throw Error(
        ErrorCode::kRekeyAmbiguous,
        cat(path(), ": ", quote(buckets_[bucket_].key, 200), ": at element ", begin, " may begin ",
            text(parts.front()), " or ", text(parts.back()),
            ", since both hold the elements of the float32 copy there; the order of modules "
            "tells them apart"),
        {Remedy::kNamesFrom});
  }

  BucketLayout& layout_;
  const std::vector<Bucket>& buckets_;
  std::size_t bucket_ = 0;
  std::size_t last_order_ = static_cast<std::size_t>(-1);
  std::size_t candidate_count_ = 0;
  std::vector<PartPlace> places_;
  std::vector<std::vector<std::size_t>> candidates_;  // of each place
  std::set<std::size_t> taken_;                       // parts that have a place
  // Of settled places: place and layer by block, places by kind of each layer, and the numbers of
  // parts by their count.
  std::map<std::string, std::vector<std::pair<std::size_t, std::int64_t>>> layers_;
  std::map<std::pair<std::string, std::int64_t>,
           std::map<std::pair<std::string, std::string>, std::size_t>>
      by_layer_;
  std::map<std::size_t, std::set<std::size_t>> numbers_;
};

std::vector<PartPlace> BucketLayout::places(const std::vector<Bucket>& buffer) {
  return Buffer(*this, buffer).run();
}

}  // namespace fsdp::formats::megatron
