// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/quantized/scale_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/checkpoint/source_pieces.h"

namespace fsdp::formats::quantized {
namespace {

constexpr std::uint64_t kNowhere = std::numeric_limits<std::uint64_t>::max();
// The largest E2M1 and the largest float8_e4m3fn.
constexpr float kMostFloat4 = 6;
constexpr float kMostFloat8 = 448;
constexpr float kMostFloat16 = 65504;
// Fewer scales of blocks than this may all be at the end of their range.
constexpr std::uint64_t kFewBlocks = 64;

// How many elements are of a kind, and the first of them.
struct Count {
  std::uint64_t count = 0;
  std::uint64_t first = kNowhere;
  void add(std::uint64_t at) {
    ++count;
    first = std::min(first, at);
  }
  void join(const Count& other) {
    count += other.count;
    first = std::min(first, other.first);
  }
};

struct Figures {
  Count nan, infinite, negative, zero, denormal, most, unexpected;
  float largest = 0;  // of the finite ones
  void join(const Figures& other) {
    nan.join(other.nan);
    infinite.join(other.infinite);
    negative.join(other.negative);
    zero.join(other.zero);
    denormal.join(other.denormal);
    most.join(other.most);
    unexpected.join(other.unexpected);
    largest = std::max(largest, other.largest);
  }
};

// What is counted of a tensor's elements.
enum class Kind { kFloats, kExponents, kNumbers, kZeroPoints };

struct Item {
  std::size_t weight;  // position in the list
  Role role;
  std::size_t tensor;  // position in the index
  Kind kind;
  std::uint32_t word = 0;  // kZeroPoints: what each word has to be
};

template <typename Element>
Element element_at(std::span<const std::byte> bytes, std::size_t i) {
  Element element;
  std::memcpy(&element, bytes.data() + i * sizeof element, sizeof element);
  return element;
}

Figures figures_of_floats(DType dtype, std::uint64_t first, std::span<const std::byte> bytes) {
  Figures out;
  const std::size_t count = bytes.size() / item_bytes(dtype);
  std::vector<float> numbers(count);
  cast(dtype, bytes, DType::kFloat32, std::as_writable_bytes(std::span(numbers)));
  // Small numbers of float16 are everyday, and of float8 by design.
  const bool wide = dtype == DType::kFloat32 || dtype == DType::kBFloat16;
  for (std::size_t i = 0; i < count; ++i) {
    const float number = numbers[i];
    const std::uint64_t at = first + i;
    if (std::isnan(number)) {
      out.nan.add(at);
      continue;
    }
    if (std::isinf(number)) {
      out.infinite.add(at);
      continue;
    }
    if (number < 0) out.negative.add(at);
    if (number == 0) out.zero.add(at);
    if (wide && std::fpclassify(number) == FP_SUBNORMAL) out.denormal.add(at);
    if (number == kMostFloat8) out.most.add(at);
    out.largest = std::max(out.largest, number);
  }
  return out;
}

Figures figures_of(const Item& item, DType dtype, std::uint64_t first,
                   std::span<const std::byte> bytes) {
  if (item.kind == Kind::kFloats) return figures_of_floats(dtype, first, bytes);
  Figures out;
  if (item.kind == Kind::kZeroPoints) {
    for (std::size_t i = 0; i < bytes.size() / sizeof item.word; ++i) {
      if (element_at<std::uint32_t>(bytes, i) != item.word) out.unexpected.add(first + i);
    }
    return out;
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto code = static_cast<unsigned>(bytes[i]);
    // float8_e5m2 also has infinities.
    const bool nan = item.kind == Kind::kExponents   ? code == 0xFF
                     : dtype == DType::kFloat8E4M3FN ? (code & 0x7FU) == 0x7F
                     : dtype == DType::kFloat8E5M2   ? (code & 0x7FU) >= 0x7C
                                                     : code == 0x80;
    if (nan) out.nan.add(first + i);
  }
  return out;
}

std::string_view role_text(Role role) {
  switch (role) {
    case Role::kScales:
      return "scales";
    case Role::kZeros:
      return "zero points";
    case Role::kSecond:
      return "the scale of the scales";
    case Role::kInputs:
      return "factors of inputs";
    case Role::kTable:
      return "numbers of the table";
    case Role::kNestedScales:
      return "scales of the scales";
    case Role::kNestedTable:
      return "numbers of the table of scales";
    default:
      return "numbers";
  }
}

class ValueCheck {
 public:
  ValueCheck(const Checkpoint& source, const std::vector<FittingWeight>& weights,
             const ValueChecks& checks, Findings& findings)
      : source_(source), weights_(weights), checks_(checks), findings_(findings) {}

  std::vector<std::string> run() {
    for (std::size_t w = 0; w < weights_.size(); ++w) list(w);
    read();
    for (std::size_t i = 0; i < items_.size(); ++i) report(items_[i], figures_[i]);
    for (std::size_t i = 0; i < items_.size(); ++i) report_overflow(i);
    std::vector<std::string> out;
    for (const auto& [what, note] : notes_) {
      out.push_back(cat(group_digits(note.count), " numbers in ", note.tensors, " tensors are ",
                        what, ", the first in ", quote(note.first, 200)));
    }
    return out;
  }

 private:
  const TensorEntry& entry(const Item& item) const { return source_.index().tensors[item.tensor]; }

  // Lists the tensors of a weight whose elements say something.
  void list(std::size_t w) {
    const StoredWeight& stored = weights_[w].stored;
    for (const auto& [role, tensor] : stored.tensors) {
      const DType dtype = source_.index().tensors[tensor].dtype;
      Item item{w, role, tensor, Kind::kFloats};
      const bool exponents =
          dtype == DType::kFloat8E8M0FNU ||
          (dtype == DType::kUInt8 &&
           (weights_[w].scheme->powers || checks_.dialect == Dialect::kTransformersFp8));
      if (role == Role::kNumbers) {
        if (!checks_.numbers || !is_float8(dtype)) continue;
        item.kind = Kind::kNumbers;
      } else if (role == Role::kScales && exponents) {
        item.kind = Kind::kExponents;
      } else if (role == Role::kZeros && checks_.dialect == Dialect::kGptq && checks_.symmetric) {
        item.kind = Kind::kZeroPoints;
        item.word = middle_word(*weights_[w].scheme);
      } else if (!is_floating(dtype)) {
        continue;
      }
      items_.push_back(item);
    }
  }

  // Returns a word of GPTQ's zero points that all are the middle of the range.
  static std::uint32_t middle_word(const Scheme& scheme) {
    const std::uint32_t middle = (1U << (scheme.bits - 1)) - (scheme.zeros_plus_one ? 1 : 0);
    std::uint32_t word = 0;
    for (unsigned at = 0; at < 32; at += scheme.bits) word |= middle << at;
    return word;
  }

  void read() {
    figures_.resize(items_.size());
    std::vector<TargetPiece> pieces;
    for (const Item& item : items_) pieces.push_back(whole_tensor_piece(source_, item.tensor));
    std::mutex mutex;
    visit_pieces(pieces, checks_.visit, [&](const TensorBlock& block) {
      const Item& item = items_[block.piece];
      const DType dtype = entry(item).dtype;
      const Figures found = figures_of(item, dtype, block.offset / item_bytes(dtype), block.bytes);
      const std::lock_guard lock(mutex);
      figures_[block.piece].join(found);
    });
  }

  void add(const Item& item, std::string message) {
    findings_.push_back(
        {.code = ErrorCode::kQuantValues, .message = std::move(message), .key = entry(item).key});
  }

  void note(const Item& item, const std::string& what, std::uint64_t count) {
    Note& said = notes_[what];
    if (said.tensors++ == 0) said.first = entry(item).key;
    said.count += count;
  }

  // "3 of 64 scales are NaN, the first at [2, 0]".
  std::string counted_text(const Item& item, const Count& found, std::string_view what) const {
    const TensorEntry& tensor = entry(item);
    std::vector<std::int64_t> place(tensor.shape.size());
    std::uint64_t at = found.first;
    for (std::size_t d = place.size(); d-- > 0;) {
      const auto size = static_cast<std::uint64_t>(tensor.shape[d]);
      place[d] = static_cast<std::int64_t>(at % size);
      at /= size;
    }
    return cat(group_digits(found.count), " of ", group_digits(tensor.numel()), " ",
               role_text(item.role), found.count == 1 ? " is " : " are ", what, ", the first at ",
               shape_text(place));
  }

  void report(const Item& item, const Figures& found) {
    const bool numbers = item.kind == Kind::kNumbers;
    const bool table = item.role == Role::kTable || item.role == Role::kNestedTable;
    if (found.nan.count != 0) {
      add(item, counted_text(item, found.nan,
                             item.kind == Kind::kExponents ? "255, which is NaN in E8M0" : "NaN"));
    }
    if (found.infinite.count != 0)
      add(item, counted_text(item, found.infinite, "infinite, expected finite numbers"));
    if (found.unexpected.count != 0) {
      add(item, cat("the configuration says `sym`, so that every word is ", hex32(item.word), "; ",
                    counted_text(item, found.unexpected, "others")));
    }
    if (numbers || table || item.role == Role::kZeros || item.kind == Kind::kExponents) return;
    if (found.negative.count != 0)
      add(item, counted_text(item, found.negative, "below zero, expected positive numbers"));
    if (found.zero.count != 0) report_zeros(item, found.zero);
    const auto role = cat(role_text(item.role), " that are ");
    if (found.denormal.count != 0) note(item, role + "denormal", found.denormal.count);
    const DType dtype = entry(item).dtype;
    const float limit = dtype == DType::kFloat16 ? kMostFloat16 : std::numeric_limits<float>::max();
    if (item.role == Role::kScales && found.largest > limit / largest_number(item)) {
      note(item, cat(role, "so large that the largest weight is infinite in ", torch_name(dtype)),
           1);
    }
  }

  // Returns the largest number that a scale of the scheme multiplies.
  float largest_number(const Item& item) const {
    const Scheme& scheme = *weights_[item.weight].scheme;
    if (scheme.numbers == NumberKind::kInteger)
      return static_cast<float>((1U << (scheme.bits - 1)) - 1);
    return scheme.bits == 4 ? kMostFloat4 : kMostFloat8;
  }

  void report_zeros(const Item& item, const Count& zeros) {
    // bitsandbytes writes the largest magnitude itself, which is 0 where all weights are.
    if (checks_.dialect == Dialect::kBitsandbytes4 || checks_.dialect == Dialect::kBitsandbytes8)
      return;
    const DType dtype = entry(item).dtype;
    // Scales of 8 bits and of float16 become 0 where weights are small beside the others.
    const bool rounds = item.role == Role::kScales &&
                        (item_bytes(dtype) == 1 || checks_.dialect == Dialect::kGptq ||
                         checks_.dialect == Dialect::kAwq);
    if (rounds || item.role == Role::kInputs) {
      note(item, cat(role_text(item.role), " that are zero, and make weights zero"), zeros.count);
    } else {
      add(item, counted_text(item, zeros, "zero, which this scheme does not write"));
    }
  }

  // Reports scales of blocks that their own scale makes too large.
  void report_overflow(std::size_t i) {
    const Item& scales = items_[i];
    const FittingWeight& weight = weights_[scales.weight];
    if (scales.role != Role::kScales || !weight.scheme->second_scale) return;
    // Those of a weight follow each other.
    for (std::size_t j = i + 1; j < items_.size() && items_[j].weight == scales.weight; ++j) {
      if (items_[j].role != Role::kSecond) continue;
      const float block = figures_[i].largest;
      const float second = figures_[j].largest;
      const bool divides = checks_.dialect == Dialect::kCompressedTensors;
      const float scale = divides ? block / second : block * second;
      if (second > 0 && !std::isfinite(scale * largest_number(scales))) {
        add(items_[j], cat("is ", second, ": the largest scale of a block, ", block,
                           divides ? ", divided by it" : ", times it",
                           " overflows float32; expected a finite weight"));
      }
      break;
    }
    const Count& most = figures_[i].most;
    const std::uint64_t count = entry(scales).numel();
    if (count >= kFewBlocks && most.count > count / 2) {
      note(scales,
           "scales that are 448, the most that they hold, in more than half of the blocks: the "
           "scale of the scales may be that of other weights",
           most.count);
    }
  }

  const Checkpoint& source_;
  const std::vector<FittingWeight>& weights_;
  const ValueChecks& checks_;
  Findings& findings_;
  struct Note {
    std::uint64_t count = 0;
    std::size_t tensors = 0;
    std::string first = {};  // key
  };
  std::vector<Item> items_;
  std::vector<Figures> figures_;
  std::map<std::string, Note> notes_;  // by what they say
};

}  // namespace

std::vector<std::string> check_values(const Checkpoint& source,
                                      const std::vector<FittingWeight>& weights,
                                      const ValueChecks& checks, Findings& findings) {
  return ValueCheck(source, weights, checks, findings).run();
}

}  // namespace fsdp::formats::quantized
