// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/comparing/comparison.h"

#include <algorithm>
#include <mutex>
#include <span>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/state/checkpoint/source_pieces.h"
#include "formats/state/content/value_compare.h"
#include "formats/state/model/tensor_reader.h"
#include "tools/base/reading.h"
#include "tools/base/selection.h"
#include "tools/text/value_text.h"
#include "tools/verbs/comparing/comparison_sides.h"
#include "tools/verbs/comparing/export_search.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::DType;
using formats::Index;
using formats::TargetPiece;
using formats::TensorDifference;
using formats::TensorEntry;

// Blocks are smaller than elsewhere: those of both sides share a core's second-level cache.
constexpr std::uint64_t kBlockBytes = 256U << 10U;
constexpr std::size_t kMaxHints = 20;         // names suggested ...
constexpr std::size_t kMaxCandidates = 2000;  // ... out of so many
constexpr std::size_t kValueText = 80;

class Comparer {
 public:
  Comparer(const DiffOptions& options, const Streams& streams)
      : options_(options),
        streams_(streams),
        selection_(options.common.keys),
        sides_(open_sides(options, selection_, streams)) {}

  Comparison run() {
    selection_.finish(
        cat(formats::escape(options_.common.path), " and ", formats::escape(options_.other)));
    for (std::size_t s = 0; s < 2; ++s)
      result_.formats[s] = sides_[s].checkpoint->description().format;
    ExportSearch found = find_export(options_, sides_);
    result_.way = std::move(found.way);
    result_.no_way = std::move(found.why);
    match();
    compare_tensors();
    for (const Side& side : sides_) side.checkpoint->check_unchanged();
    take_figures();
    add_hints();
    return std::move(result_);
  }

 private:
  // A pair of pieces being compared.
  struct Pair {
    std::string key;
    bool is_tensor;  // otherwise a storage within a value
    DType left, right;
    DType read_left, read_right;  // after casts
    formats::Tolerance tolerance;
    std::vector<std::int64_t> shape;
  };

  void match() {
    auto a = sides_[0].keys.begin();
    auto b = sides_[1].keys.begin();
    const EntryLess less;
    while (a != sides_[0].keys.end() || b != sides_[1].keys.end()) {
      formats::throw_if_interrupted();
      if (b == sides_[1].keys.end() || (a != sides_[0].keys.end() && less(a->first, b->first))) {
        only(0, a->first.first, a->second);
        ++a;
      } else if (a == sides_[0].keys.end() || less(b->first, a->first)) {
        only(1, b->first.first, b->second);
        ++b;
      } else {
        both(a->first.first, a->second, b->second);
        ++a;
        ++b;
      }
    }
  }

  void only(std::size_t side, const std::string& key, const Index::EntryRef& ref) {
    if (!ref.is_tensor && options_.ignore_values) return;
    std::string text = sides_[side].text(ref);
    if (sides_[1 - side].has(key)) text += ", under keys of other types";
    if (side == 0) {
      add(DifferenceKind::kOnlyA, key, std::move(text), {});
    } else {
      add(DifferenceKind::kOnlyB, key, {}, std::move(text));
    }
  }

  void add(DifferenceKind kind, const std::string& key, std::string a, std::string b,
           std::string where = {}) {
    result_.differences.push_back({kind, key, std::move(a), std::move(b), {}, std::move(where)});
  }

  void both(const std::string& key, const Index::EntryRef& a, const Index::EntryRef& b) {
    if (a.is_tensor != b.is_tensor) {
      if (!options_.ignore_values)
        add(DifferenceKind::kKind, key, sides_[0].text(a), sides_[1].text(b));
    } else if (a.is_tensor) {
      tensors(key, a.position, b.position);
    } else if (!options_.ignore_values) {
      values(key, a.position, b.position);
    }
  }

  void tensors(const std::string& key, std::size_t left, std::size_t right) {
    const TensorEntry& a = sides_[0].index().tensors[left];
    const TensorEntry& b = sides_[1].index().tensors[right];
    const bool rounds = rounds_to(a.dtype, b.dtype);
    bool compare = true;
    if (a.dtype != b.dtype && !rounds &&
        !(options_.ignore_dtype && formats::comparable(a.dtype, b.dtype))) {
      add(DifferenceKind::kDtype, key, std::string(formats::torch_name(a.dtype)),
          std::string(formats::torch_name(b.dtype)));
      compare = false;
    }
    if (a.shape != b.shape) {
      add(DifferenceKind::kShape, key, formats::shape_text(a.shape), formats::shape_text(b.shape));
      compare = false;
    }
    if (!compare) return;
    pieces_[0].push_back(formats::whole_tensor_piece(*sides_[0].checkpoint, left));
    pieces_[1].push_back(formats::whole_tensor_piece(*sides_[1].checkpoint, right));
    std::array<DType, 2> read = {a.dtype, b.dtype};
    if (rounds) {
      const std::size_t origin = result_.way->origin;
      const DType to = read[1 - origin];
      ++result_.way->rounded[{read[origin], to}];
      pieces_[origin].back().cast_to = to;
      read[origin] = to;
    }
    pairs_.push_back(
        {key, true, a.dtype, b.dtype, read[0], read[1], tolerance_for(read[0], read[1]), a.shape});
    result_.bytes += a.bytes();
    total_bytes_ += a.bytes() + b.bytes();
  }

  // Returns whether elements of the origin are rounded to the dtype of its export.
  bool rounds_to(DType a, DType b) const {
    if (!result_.way || options_.ignore_dtype || a == b) return false;
    const DType from = result_.way->origin == 0 ? a : b;
    return formats::can_cast(from, from == a ? b : a);
  }

  formats::Tolerance tolerance_for(DType a, DType b) const {
    formats::Tolerance tolerance = options_.tolerance;
    if (!options_.close) return tolerance;
    const formats::Tolerance left = formats::close_tolerance(a);
    const formats::Tolerance right = formats::close_tolerance(b);
    if (!options_.has_atol) tolerance.atol = std::max(left.atol, right.atol);
    if (!options_.has_rtol) tolerance.rtol = std::max(left.rtol, right.rtol);
    return tolerance;
  }

  void values(const std::string& key, std::size_t left, std::size_t right) {
    const formats::Value a = sides_[0].checkpoint->value(sides_[0].index().values[left]);
    const formats::Value b = sides_[1].checkpoint->value(sides_[1].index().values[right]);
    ++result_.values;
    formats::ValueComparison found = formats::compare_values(a, b);
    if (!found.same) {
      add(DifferenceKind::kValue, key, value_text(a, kValueText), value_text(b, kValueText),
          found.where);
      return;
    }
    for (const auto& [x, y] : found.storages) {
      pieces_[0].push_back(formats::storage_piece(*sides_[0].checkpoint, x));
      pieces_[1].push_back(formats::storage_piece(*sides_[1].checkpoint, y));
      pairs_.push_back({key, false, x.dtype, y.dtype, x.dtype, y.dtype, {}, {}});
      total_bytes_ += 2 * x.numel * formats::item_bytes(x.dtype);
    }
  }

  void compare_tensors() {
    figures_.resize(pairs_.size());
    std::mutex mutex;
    Progress progress(streams_.err, streams_.show_progress, "diff", total_bytes_);
    formats::VisitOptions visit = visit_options(options_.common, progress);
    visit.block_bytes = kBlockBytes;
    const auto compare = [&](const formats::TensorBlockPair& block) {
      const Pair& pair = pairs_[block.piece];
      TensorDifference found;
      formats::compare_elements(pair.read_left, block.left, pair.read_right, block.right,
                                block.first, pair.tolerance, found);
      const std::lock_guard lock(mutex);
      formats::merge(figures_[block.piece], found);
    };
    read_or_say_exclude([&] {
      result_.unchecked_bytes =
          formats::visit_pairs(pieces_[0], pieces_[1], visit, compare).unchecked_bytes;
    });
    join_figures(*options_.common.team);
  }

  // Adds the figures of the blocks that other members of a team compared.
  void join_figures(formats::Team& team) {
    if (team.alone()) return;
    formats::Packed mine;
    for (std::size_t i = 0; i < figures_.size(); ++i) {
      if (figures_[i].count != 0) mine.number(i).object(figures_[i]);
      figures_[i] = {};
    }
    for (const std::string& sent : team.exchange("differences", mine.take())) {
      formats::Unpacked fields(sent);
      while (!fields.empty()) {
        const std::size_t pair = fields.number();
        formats::merge(figures_[pair], fields.object<TensorDifference>());
      }
    }
  }

  void take_figures() {
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      if (figures_[i].different == 0) {
        result_.within += figures_[i].unequal != 0 ? 1 : 0;
      } else if (!pairs_[i].is_tensor) {
        add_storage(i);
      }
    }
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      Pair& pair = pairs_[i];
      if (pair.is_tensor)
        result_.compared.push_back(
            {std::move(pair.key), pair.left, pair.right, std::move(pair.shape), figures_[i]});
    }
  }

  // Adds a value that differs, when its first storage that differs is met.
  void add_storage(std::size_t i) {
    if (i == 0 || pairs_[i - 1].key != pairs_[i].key || figures_[i - 1].different == 0)
      add(DifferenceKind::kValue, pairs_[i].key, "bytes of a storage", "other bytes");
  }

  void add_hints() {
    std::array<std::vector<std::string>, 2> names;
    for (const Difference& difference : result_.differences) {
      if (difference.kind == DifferenceKind::kOnlyA) names[0].push_back(difference.key);
      if (difference.kind == DifferenceKind::kOnlyB) names[1].push_back(difference.key);
    }
    if (names[0].empty() || names[1].empty()) return;
    for (std::size_t s = 0; s < 2 && result_.prefix_hint.empty(); ++s)
      find_prefix(names[s], names[1 - s], s == 0 ? "a" : "b");
    std::array<std::size_t, 2> given{};
    for (Difference& difference : result_.differences) {
      const bool a = difference.kind == DifferenceKind::kOnlyA;
      if (!a && difference.kind != DifferenceKind::kOnlyB) continue;
      if (++given[a ? 0 : 1] > kMaxHints) continue;
      const auto& others = names[a ? 1 : 0];
      difference.hint = formats::nearest(
          difference.key, std::span(others).first(std::min(others.size(), kMaxCandidates)));
    }
  }

  // Finds a prefix that turns at least half of `names` into names of `others`.
  void find_prefix(const std::vector<std::string>& names, std::vector<std::string> others,
                   const std::string& side) {
    std::sort(others.begin(), others.end());
    const auto has = [&](const std::string& name) {
      return std::binary_search(others.begin(), others.end(), name);
    };
    const std::string& sample = names.front();
    for (std::size_t dot = sample.find('.'); dot != std::string::npos;
         dot = sample.find('.', dot + 1)) {
      if (!has(sample.substr(dot + 1))) continue;
      const std::string prefix = sample.substr(0, dot + 1);
      const auto hits = std::count_if(names.begin(), names.end(), [&](const std::string& name) {
        return name.starts_with(prefix) && has(name.substr(prefix.size()));
      });
      if (static_cast<std::size_t>(hits) * 2 >= names.size()) {
        result_.prefix_hint = cat("--strip-prefix-", side, " ", formats::escape(prefix));
        return;
      }
    }
  }

  const DiffOptions& options_;
  const Streams& streams_;
  SelectionCheck selection_;
  Sides sides_;
  std::array<std::vector<TargetPiece>, 2> pieces_;
  std::vector<Pair> pairs_;
  std::vector<TensorDifference> figures_;
  std::uint64_t total_bytes_ = 0;
  Comparison result_;
};

}  // namespace

std::string kind_word(DifferenceKind kind) {
  constexpr const char* kWords[] = {"only_a", "only_b", "kind",  "dtype",
                                    "shape",  "value",  "tensor"};
  return kWords[static_cast<std::size_t>(kind)];
}

std::vector<std::int64_t> ComparedTensor::place_of(std::uint64_t at) const {
  std::vector<std::int64_t> place(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    const std::uint64_t each = d + 1 == shape.size() ? formats::values_of_element(a) : 1;
    const auto size = static_cast<std::uint64_t>(shape[d]) * each;
    place[d] = static_cast<std::int64_t>(at % size);
    at /= size;
  }
  return place;
}

std::uint64_t Comparison::count(DifferenceKind kind) const {
  if (kind == DifferenceKind::kTensor) {
    return static_cast<std::uint64_t>(
        std::count_if(compared.begin(), compared.end(),
                      [](const ComparedTensor& tensor) { return tensor.differs(); }));
  }
  return static_cast<std::uint64_t>(
      std::count_if(differences.begin(), differences.end(),
                    [&](const Difference& difference) { return difference.kind == kind; }));
}

Comparison compare_checkpoints(const DiffOptions& options, const Streams& streams) {
  return Comparer(options, streams).run();
}

}  // namespace fsdp::cli
