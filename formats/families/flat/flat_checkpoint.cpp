// SPDX-License-Identifier: Apache-2.0
#include "formats/families/flat/flat_checkpoint.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "formats/families/flat/flat_optimizer.h"
#include "formats/families/flat/flat_parameters.h"
#include "formats/families/flat/key_order.h"
#include "formats/families/flat/model_division.h"
#include "formats/families/torch/file_set.h"
#include "formats/families/torch/stored_file.h"
#include "formats/families/trainers/ranks.h"
#include "formats/families/trainers/sharded_value.h"
#include "formats/state/content/combined_checkpoint.h"
#include "formats/state/content/object_fields.h"

namespace fsdp::formats::flat {
namespace {

namespace fs = std::filesystem;

using Kind = FlatModel::Member::Kind;

constexpr std::string_view kNotDivided =
    " of FSDP1's LOCAL_STATE_DICT, and the names and shapes of the parameters in it are not in the "
    "files";

// Returns the box of a tensor from that in the order of its memory, dimension order[d] of the
// tensor being the d-th there.
Box unpermuted(const Box& box, std::span<const std::size_t> order) {
  Box out = box;
  for (std::size_t d = 0; d < order.size(); ++d) {
    out.offset[order[d]] = box.offset[d];
    out.size[order[d]] = box.size[d];
  }
  return out;
}

class FlatCheckpoint : public TorchFileSet {
 public:
  FlatCheckpoint(std::shared_ptr<const Folder> opened, const RankFiles& set,
                 const ParameterList* list)
      : TorchFileSet(std::move(opened)) {
    std::vector<std::string> names;
    for (const auto& [rank, name] : set.files) names.push_back(name);
    expect_files(names);
    std::vector<RankLeaves> files;
    for (const auto& [rank, name] : set.files) {
      const std::uint32_t file = add_file(name, rank);
      files.push_back({file, rank, {}});
      in_context([&] { return path_of(file); },
                 [&] { files.back().leaves = leaves_of(torch(file).root); });
    }
    const std::vector<Leaf> first = files.front().leaves;
    in_context([&] { return escape(folder().path().native()); },
               [&] {
                 models_ = take_flat_parameters(files);
                 take_optimizers(files);
                 divide_models(list);
               });
    note_missing(set);
    order_.emplace(first, models_, list);
    for (RankLeaves& file : files) {
      for (Leaf& leaf : file.leaves) {
        in_context([&] { return cat(path_of(file.file), ": ", quote(leaf.key, 200)); },
                   [&] { read_plain(file.file, leaf); });
      }
    }
    for (std::size_t m = 0; m < models_.size(); ++m) add_model(m);
    for (const FlatOptimizer& optimizer : optimizers_) add_optimizer(optimizer);
    add_entries();
    description_ = {escape(folder().path().native()), "per-rank", "fsdp1-local", std::nullopt,
                    static_cast<std::int64_t>(set.files.size())};
  }

  ChunkData chunk(const TensorEntry& tensor, std::size_t chunk) const override {
    if (const auto torn = torn_.find(tensor.key); torn != torn_.end())
      throw Error(ErrorCode::kMismatch,
                  cat(description_.path, ": ", quote(tensor.key, 200), ": ", torn->second));
    if (undivided_.contains(tensor.key)) {
      throw Error(ErrorCode::kUnsupported,
                  cat(description_.path, ": ", quote(tensor.key, 200), ": is of a flat parameter",
                      kNotDivided),
                  {Remedy::kNamesFrom});
    }
    return TorchFileSet::chunk(tensor, chunk);
  }

 private:
  // A tensor or value of the index, and its place in the order of the index.
  struct Entry {
    KeyPath path;
    KeyPlace order;
    std::optional<DType> dtype = {};  // of a tensor
    std::vector<std::int64_t> shape = {};
    std::vector<Part> parts = {};
    Value value = {};
    std::uint32_t file = 0;
    bool undivided = false;
    std::string torn = {};  // parts that differ between two ranks; empty: none
  };

  void note_missing(const RankFiles& set) {
    const std::map<std::int64_t, std::string> present(set.files.begin(), set.files.end());
    std::int64_t ranks = set.files.back().first + 1;
    for (const FlatModel& model : models_) {
      for (const FlatParameter& flat : model.flats) {
        if (flat.size.shard != 0)
          ranks = std::max(ranks, (flat.size.numel + flat.size.shard - 1) / flat.size.shard);
      }
    }
    const SomeNames missing = missing_ranks(present, std::min(ranks, kMaxRanks));
    if (missing.count() == 0) return;
    findings_.push_back(
        warning(ErrorCode::kShardMissing, cat("the tensors are laid out for ", ranks,
                                              " ranks; missing files: rank ", missing.text())));
  }

  // Takes the leaves of optimizers out of the files.
  void take_optimizers(std::vector<RankLeaves>& files) {
    if (models_.empty()) return;
    std::map<std::uint32_t, const Value*> roots;
    for (const RankLeaves& file : files) roots.emplace(file.file, &torch(file.file).root);
    optimizers_ = flat_optimizers(roots, models_);
    for (RankLeaves& file : files) {
      std::erase_if(file.leaves, [&](const Leaf& leaf) {
        return std::ranges::any_of(optimizers_, [&](const FlatOptimizer& optimizer) {
          const KeyPath& place = optimizer.place;
          return leaf.path.size() >= place.size() &&
                 std::equal(place.begin(), place.end(), leaf.path.begin());
        });
      });
    }
  }

  void divide_models(const ParameterList* list) {
    divisions_.resize(models_.size());
    if (list != nullptr) list->used = true;
    std::size_t whole = 0;
    for (std::size_t m = 0; m < models_.size(); ++m) {
      const FlatModel& model = models_[m];
      if (list != nullptr) {
        divisions_[m] = divide(model, *list,
                               [&](const FlatParameter& flat, const FlatRange& range, bool at_end) {
                                 return holds_padding(flat, range, at_end);
                               });
      } else {
        divisions_[m].divided.assign(model.flats.size(), 0);
      }
      for (const std::size_t f : divisions_[m].odd_padding) {
        findings_.push_back(
            warning(ErrorCode::kMismatch,
                    "elements between the parameters are not those that FSDP writes there, and are "
                    "assumed to be padding",
                    {}, key_of(model, model.flats[f].key)));
      }
      whole += static_cast<std::size_t>(std::ranges::count(divisions_[m].divided, 0));
    }
    if (whole == 0) return;
    Finding finding =
        warning(ErrorCode::kUnsupported,
                cat("holds ", whole, whole == 1 ? " flat parameter" : " flat parameters, each",
                    kNotDivided));
    finding.hint = {Remedy::kNamesFrom};
    findings_.push_back(std::move(finding));
  }

  static std::string key_of(const FlatModel& model, const std::string& name) {
    KeyPath path = model.place;
    path.emplace_back(name);
    return joined(path);
  }

  // Compares elements with the padding that FSDP writes.  Elements of ranks without a file pass.
  bool holds_padding(const FlatParameter& flat, const FlatRange& range, bool at_end) const {
    const auto bytes = static_cast<std::size_t>(item_bytes(flat.dtype));
    const std::vector<double> number = {kPaddingValue};
    std::vector<std::byte> value(bytes);
    if (flat.dtype == DType::kFloat64) {
      std::ranges::copy(std::as_bytes(std::span(number)), value.begin());
    } else if (can_cast(DType::kFloat64, flat.dtype)) {
      cast(DType::kFloat64, std::as_bytes(std::span(number)), flat.dtype, value);
    }
    const std::vector<std::byte> zero(bytes);
    for (const FlatRun& run : flat.runs) {
      const std::int64_t begin = std::max(range.begin, run.begin);
      const std::int64_t end = std::min(range.end, run.begin + run.count);
      if (begin >= end) continue;
      std::vector<Part> parts;
      const std::vector<std::int64_t> shape = {end - begin};
      add_flat_parts(parts, shape, 0, end - begin, run.file, run.view, begin - run.begin);
      const std::vector<std::byte> held = elements_of(parts.at(0));
      for (std::size_t at = 0; at < held.size(); at += bytes) {
        const auto is = [&](const std::vector<std::byte>& wanted) {
          return std::equal(wanted.begin(), wanted.end(),
                            held.begin() + static_cast<std::ptrdiff_t>(at));
        };
        // Padding that makes the ranks' parts equally long is zeros, and is removed before saving.
        if (!is(value) && !(at_end && flat.size.padded && is(zero))) return false;
      }
    }
    return true;
  }

  // Reads a leaf that is not cut.  The first file that has it decides.
  void read_plain(std::uint32_t file, Leaf& leaf) {
    Entry fresh{.path = leaf.path, .order = {}, .file = file};
    if (order_->in_model(leaf.path)) {
      auto& name = std::get<std::string>(fresh.path.back());
      name = without_wrappers(name);
    }
    const auto sharded = sharded_value(leaf.value);
    const auto tensor = sharded ? std::nullopt : dense_tensor(leaf.value);
    const auto known = plain_.find(joined(fresh.path));
    if (sharded) {
      throw Error(ErrorCode::kUnsupported,
                  "is a sharded tensor beside flat parameters, which are not read together");
    }
    if (known != plain_.end()) {
      if (entries_[known->second].file == file)
        throw Error(ErrorCode::kKey, "two entries have this name");
      compare(file, leaf, tensor, entries_[known->second]);
      return;
    }
    if (tensor) {
      fresh.dtype = tensor->dtype;
      fresh.shape = tensor->shape;
      fresh.parts.push_back(part_of(whole_box(tensor->shape), file, *tensor));
    } else {
      fresh.value = leaf.value;
    }
    fresh.order = order_->of(fresh.path);
    plain_.emplace(joined(fresh.path), entries_.size());
    entries_.push_back(std::move(fresh));
  }

  void compare(std::uint32_t file, const Leaf& leaf, const std::optional<TensorValue>& tensor,
               const Entry& entry) {
    if (!tensor || !entry.dtype || !is_differentiable(*entry.dtype)) return;
    const bool alike = tensor->dtype == *entry.dtype && tensor->shape == entry.shape;
    if (alike && are_equal(entry.parts[0], part_of(whole_box(tensor->shape), file, *tensor)))
      return;
    if (!unlike_.insert(leaf.key).second) return;
    findings_.push_back(warning(
        ErrorCode::kMismatch,
        cat("differs from the tensor in ", index_.files[entry.file].name, ", which is used"),
        index_.files[file].name, leaf.key));
  }

  // Returns the parts of elements [begin, begin + numel) of a flat tensor, as a tensor of the
  // shape.
  std::vector<Part> parts_of(const std::vector<FlatRun>& runs, std::int64_t begin,
                             std::int64_t numel, std::span<const std::int64_t> shape,
                             std::span<const std::size_t> memory_order) const {
    std::vector<std::int64_t> laid(shape.begin(), shape.end());
    for (std::size_t d = 0; d < memory_order.size(); ++d) laid[d] = shape[memory_order[d]];
    std::vector<Part> parts;
    for (const FlatRun& run : runs) {
      const std::int64_t from = std::max(begin, run.begin);
      const std::int64_t to = std::min(begin + numel, run.begin + run.count);
      if (from < to)
        add_flat_parts(parts, laid, from - begin, to - begin, run.file, run.view, from - run.begin);
    }
    if (memory_order.empty()) return parts;
    for (Part& part : parts) {
      const std::vector<std::int64_t> strides = part.view.strides;
      part.box = unpermuted(part.box, memory_order);
      part.view.shape = part.box.size;
      for (std::size_t d = 0; d < memory_order.size(); ++d)
        part.view.strides[memory_order[d]] = strides[d];
    }
    return parts;
  }

  void add_model(std::size_t m) {
    const FlatModel& model = models_[m];
    const std::vector<std::string> torn = torn_parts(model);
    const auto add = [&](const std::string& name, std::size_t f, std::int64_t begin,
                         std::int64_t numel, const std::vector<std::int64_t>& shape,
                         const std::vector<std::size_t>& memory_order, bool undivided) {
      Entry entry{.path = model.place, .order = {}};
      entry.path.emplace_back(name);
      entry.dtype = model.flats[f].dtype;
      entry.shape = shape;
      entry.parts = parts_of(model.flats[f].runs, begin, numel, shape, memory_order);
      entry.undivided = undivided;
      entry.torn = torn[f];
      entry.order = order_->of(entry.path);
      entries_.push_back(std::move(entry));
    };
    for (const DividedParameter& one : divisions_[m].parameters) {
      add(one.listed->name, one.flat, one.begin, one.numel, one.listed->shape,
          one.listed->memory_order, false);
    }
    for (std::size_t f = 0; f < model.flats.size(); ++f) {
      if (divisions_[m].divided[f] != 0) continue;
      const std::int64_t numel = model.flats[f].size.numel;
      add(without_wrappers(model.flats[f].key), f, 0, numel, {numel}, {}, true);
    }
  }

  // Compares replicas.  Returns, for each flat parameter, which files differ.
  std::vector<std::string> torn_parts(const FlatModel& model) {
    std::vector<std::string> torn(model.flats.size());
    for (std::size_t f = 0; f < model.flats.size(); ++f) {
      const FlatParameter& flat = model.flats[f];
      for (const FlatRun& replica : flat.replicas) {
        const auto first = std::ranges::find(flat.runs, replica.begin, &FlatRun::begin);
        const auto part = [&](const FlatRun& run) {
          const std::vector<std::int64_t> size = {run.count};
          return part_of(whole_box(size), run.file, run.view);
        };
        if (!torn[f].empty() || are_equal(part(*first), part(replica))) continue;
        torn[f] = cat(index_.files[first->file].name, " and ", index_.files[replica.file].name,
                      " hold elements ", replica.begin, " to ", replica.begin + replica.count,
                      " with other bytes: replicas that differ");
        findings_.push_back(
            {.code = ErrorCode::kMismatch, .message = torn[f], .key = key_of(model, flat.key)});
      }
    }
    return torn;
  }

  void add_optimizer(const FlatOptimizer& optimizer) {
    if (!optimizer.unfit.empty()) {
      findings_.push_back(warning(
          ErrorCode::kExtraFile,
          cat("each rank has its own part of the optimizer's state, which is not joined; in no "
              "output: ",
              escape(joined(optimizer.place)), " (", optimizer.unfit, ")")));
      return;
    }
    std::size_t next = 0;
    const auto add = [&](KeyPath path) -> Entry& {
      entries_.push_back({.path = std::move(path), .order = order_->of(optimizer.place, next++)});
      return entries_.back();
    };
    const auto below = [&](std::initializer_list<PathStep> steps) {
      KeyPath path = optimizer.place;
      path.insert(path.end(), steps);
      return path;
    };
    const Value& first = *at_path(torch(0).root, optimizer.place);
    const auto members = mapping_entries(first);
    for (const auto& [key, value] : *members) {
      if (key.as_string() == nullptr) continue;
      if (*key.as_string() == "state") {
        for (const OptimizerParameter& parameter : optimizer.parameters) {
          for (const StateTarget& target : state_targets(parameter, models_[0], divisions_[0])) {
            for (const OptimizerKind& kind : parameter.kinds)
              add_state(add(below({std::string("state"), target.name, kind.name})), parameter, kind,
                        target);
          }
        }
      } else if (*key.as_string() == "param_groups") {
        std::size_t used = 0;
        for (std::size_t g = 0; g < value.items().size(); ++g) {
          const auto options = mapping_entries(value.items()[g]);
          const std::size_t count = member(value.items()[g], "params")->items().size();
          for (const auto& [option, said] : *options) {
            if (option.as_string() == nullptr) continue;
            Entry& entry = add(below(
                {std::string("param_groups"), static_cast<std::int64_t>(g), *option.as_string()}));
            const bool names =
                *option.as_string() == "params" || *option.as_string() == "param_names";
            entry.value =
                names ? names_in_group(optimizer, used, count, said, models_[0], divisions_[0])
                      : said;
          }
          used += count;
        }
      } else {
        add(below({*key.as_string()})).value = value;
      }
    }
  }

  void add_state(Entry& entry, const OptimizerParameter& parameter, const OptimizerKind& kind,
                 const StateTarget& target) {
    const auto& [file, value] = *kind.values.begin();
    const auto tensor = dense_tensor(*value);
    if (kind.parts.empty() || kind.whole) {
      compare_shared(joined(entry.path), kind);
      entry.file = file;
      if (tensor) {
        entry.dtype = tensor->dtype;
        entry.shape = tensor->shape;
        entry.parts.push_back(part_of(whole_box(tensor->shape), file, *tensor));
      } else {
        entry.value = *value;
      }
      return;
    }
    const FlatParameter& flat = models_[0].flats[*target.flat];
    entry.dtype = kind.parts.begin()->second.dtype;
    entry.shape = target.shape;
    entry.undivided = target.undivided;
    std::vector<FlatRun> runs;
    for (const FlatRun& run : flat.runs) {
      const auto part = kind.parts.find(run.file);
      if (part == kind.parts.end()) continue;
      if (part->second.dtype != *entry.dtype)
        throw Error(ErrorCode::kDtype,
                    cat(quote(joined(entry.path), 200), ": ranks differ in type"));
      FlatRun own = run;
      own.view = part->second;
      if (parameter.member->kind == Kind::kNamed) {
        const FlatRange& in = models_[0].named[parameter.member->number].in.at(run.file);
        own.begin = in.begin;
        own.count = in.end - in.begin;
      }
      runs.push_back(std::move(own));
    }
    entry.parts = parts_of(runs, target.begin, target.numel, target.shape, target.memory_order);
  }

  // Values that all ranks share, such as the step count, are those of the first file.  A rank with
  // another value is from another save.
  void compare_shared(const std::string& key, const OptimizerKind& kind) {
    const auto& [first, value] = *kind.values.begin();
    const auto tensor = dense_tensor(*value);
    for (const auto& [file, other] : kind.values) {
      const auto own = dense_tensor(*other);
      bool same = true;
      if (tensor && own) {
        same = tensor->dtype == own->dtype && tensor->shape == own->shape &&
               are_equal(part_of(whole_box(tensor->shape), first, *tensor),
                         part_of(whole_box(own->shape), file, *own));
      } else {
        same = value->as_int() == other->as_int();
      }
      if (same || !apart_.insert(file).second) continue;
      findings_.push_back(
          warning(ErrorCode::kMismatch,
                  cat("differs from the number in ", escape(index_.files[first].name),
                      ": the files are from two saves"),
                  index_.files[file].name, key));
    }
  }

  void add_entries() {
    std::ranges::stable_sort(entries_, {}, &Entry::order);
    for (Entry& entry : entries_) {
      if (!entry.dtype) {
        add_value(std::move(entry.path), std::move(entry.value), entry.file);
        continue;
      }
      add_tensor(std::move(entry.path), *entry.dtype, std::move(entry.shape),
                 std::move(entry.parts));
      const std::string& key = index_.tensors.back().key;
      if (entry.undivided) undivided_.insert(key);
      if (!entry.torn.empty()) torn_.emplace(key, std::move(entry.torn));
    }
    entries_.clear();
  }

  std::vector<FlatModel> models_;
  std::vector<ModelDivision> divisions_;  // of each model
  std::vector<FlatOptimizer> optimizers_;
  std::optional<KeyOrder> order_;                       // while opening
  std::vector<Entry> entries_;                          // while opening
  std::unordered_map<std::string, std::size_t> plain_;  // entries by key
  std::set<std::string> undivided_;
  std::map<std::string, std::string> torn_;  // by key: parts that differ between two ranks
  std::set<std::string> unlike_;             // keys of whole tensors that differ between ranks
  std::set<std::uint32_t> apart_;            // files with other shared values than the first
};

// Returns whether a file holds flat parameters.  Its own reader reports errors.
bool holds_flat_parameters(const fs::path& path) {
  try {
    const auto file = file_at(path);
    const TorchStream stream = sniff_torch_stream(*file);
    if (stream != TorchStream::kZip && stream != TorchStream::kLegacy) return false;
    return std::ranges::any_of(leaves_of(read_torch_save(*file).root), is_flat_leaf);
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
    return false;
  }
}

}  // namespace

bool is_flat_folder(const Listing& folder) {
  return std::ranges::any_of(rank_files(folder.names), [&](const RankFiles& set) {
    return holds_flat_parameters(folder.path() / set.files[0].second);
  });
}

std::unique_ptr<StoredCheckpoint> open_flat_files(const fs::path& folder, const RankFiles& set,
                                                  const ParameterList* list) {
  if (!holds_flat_parameters(folder / set.files[0].second)) return open_rank_files(folder, set);
  return std::make_unique<FlatCheckpoint>(folder_at(folder), set, list);
}

std::unique_ptr<StoredCheckpoint> open_flat_folder(const fs::path& folder,
                                                   const ParameterList* list) {
  std::vector<CheckpointPart> parts;
  Findings findings;
  for (const RankFiles& set : rank_files(Listing(folder).names)) {
    const fs::path first = folder / set.files[0].second;
    if (holds_flat_parameters(first) || holds_sharded_tensors(first)) {
      parts.push_back({.checkpoint = open_flat_files(folder, set, list), .name = set.name});
    } else {
      findings.push_back(warning(ErrorCode::kExtraFile,
                                 "is also the file of a rank, but holds no sharded tensors: not "
                                 "read, and in no output",
                                 set.files[0].second));
    }
  }
  if (parts.size() == 1 && findings.empty()) return std::move(parts[0].checkpoint);
  if (parts.size() == 1) parts[0].name.clear();
  return combine_checkpoints(std::move(parts), {escape(folder.native()), "per-rank", "fsdp1-local"},
                             std::move(findings));
}

}  // namespace fsdp::formats::flat
