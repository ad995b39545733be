// SPDX-License-Identifier: Apache-2.0
#include "formats/families/flat/flat_parameters.h"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/trainers/ranks.h"
#include "formats/families/trainers/sharded_value.h"
#include "formats/state/model/box.h"

namespace fsdp::formats::flat {
namespace {

constexpr std::array<std::string_view, 4> kWrappers = {"_fsdp_wrapped_module", "_fpw_module",
                                                       "_checkpoint_wrapped_module", "_orig_mod"};
constexpr std::array<std::string_view, 2> kFlatNames = {"_flat_param", "flat_param"};

std::string_view last_part(std::string_view key) {
  return key.substr(key.rfind('.') + 1);
}

const std::string* name_of(const Leaf& leaf) {
  return leaf.path.empty() ? nullptr : std::get_if<std::string>(&leaf.path.back());
}

KeyPath place_of(const Leaf& leaf) {
  return {leaf.path.begin(), leaf.path.end() - 1};
}

// Returns a tensor of one dimension whose elements follow each other.
std::optional<TensorValue> line_of(const Value& value) {
  auto tensor = dense_tensor(value);
  if (!tensor || tensor->shape.size() != 1 || (tensor->shape[0] > 1 && tensor->strides[0] != 1))
    return std::nullopt;
  tensor->strides = {1};
  return tensor;
}

class Gathering {
 public:
  explicit Gathering(std::vector<RankLeaves>& files) : files_(files) {}

  std::vector<FlatModel> run() {
    for (RankLeaves& file : files_) take_flats(file);
    for (FlatModel& model : models_) {
      for (FlatParameter& flat : model.flats) {
        in_context([&] { return quote(flat.key, 200); }, [&] { measure(flat); });
      }
    }
    for (RankLeaves& file : files_) take_views(file);
    give_back();
    return std::move(models_);
  }

 private:
  struct Empty {
    Leaf leaf;
    std::size_t position;
    RankLeaves* file;
  };

  FlatModel& model_at(const KeyPath& place) {
    const auto [at, fresh] = numbers_.try_emplace(place, models_.size());
    if (fresh) models_.push_back({.place = place, .flats = {}, .named = {}, .members = {}});
    return models_[at->second];
  }

  void take_flats(RankLeaves& file) {
    std::erase_if(file.leaves, [&](const Leaf& leaf) {
      if (!is_flat_leaf(leaf)) return false;
      in_context([&] { return quote(leaf.key, 200); }, [&] { add_flat(file, leaf); });
      return true;
    });
  }

  void add_flat(const RankLeaves& file, const Leaf& leaf) {
    const auto sharded = sharded_value(leaf.value);
    const auto line = sharded ? std::nullopt : line_of(leaf.value);
    if ((sharded && sharded->shape.size() != 1) || (!sharded && !line))
      throw Error(ErrorCode::kShape, "is a flat parameter, and has not one dimension");
    FlatModel& model = model_at(place_of(leaf));
    const std::string& key = *name_of(leaf);
    const DType dtype = sharded ? sharded->dtype : line->dtype;
    auto known = std::ranges::find(model.flats, key, &FlatParameter::key);
    if (known == model.flats.end()) {
      const std::string clean = without_wrappers(key);
      FlatParameter flat{.key = key, .module = {}, .dtype = dtype};
      flat.module =
          clean.substr(0, clean.size() - std::min(clean.size(), last_part(clean).size() + 1));
      if (sharded) flat.size.numel = sharded->shape[0];
      flat.size.padded = !sharded;
      model.flats.push_back(std::move(flat));
      known = model.flats.end() - 1;
    }
    if (known->dtype != dtype) {
      throw Error(ErrorCode::kDtype, cat("is ", torch_name(dtype), ", in another rank's file ",
                                         torch_name(known->dtype)));
    }
    if (known->size.padded != !sharded || (sharded && known->size.numel != sharded->shape[0]))
      throw Error(ErrorCode::kShape, "has another size in another rank's file");
    if (!sharded) {
      // The rank tells the place, once the lengths of all ranks are known.
      known->runs.push_back({file.file, file.rank, line->shape[0], *line});
      return;
    }
    for (const ShardedValue::Local& local : sharded->locals) {
      FlatRun run{file.file, local.box.offset[0], local.box.size[0], local.tensor};
      if (run.begin < 0 || run.count > known->size.numel - run.begin)
        throw Error(ErrorCode::kBounds, "has a part outside of it");
      if (run.view.strides[0] != 1 && run.count > 1)
        throw Error(ErrorCode::kShape, "has a part whose elements lie apart");
      run.view.strides = {1};
      known->runs.push_back(std::move(run));
    }
  }

  // Finds the places of plain parts, and sets aside those that are there twice.
  static void measure(FlatParameter& flat) {
    for (const FlatRun& run : flat.runs) flat.size.shard = std::max(flat.size.shard, run.count);
    if (flat.size.padded) place(flat);
    std::ranges::stable_sort(flat.runs, {}, &FlatRun::begin);
    std::vector<FlatRun> runs;
    for (FlatRun& run : flat.runs) {
      if (run.count == 0) continue;
      if (!runs.empty() && runs.back().begin == run.begin && runs.back().count == run.count) {
        flat.replicas.push_back(std::move(run));
      } else if (!runs.empty() && run.begin < runs.back().begin + runs.back().count) {
        throw Error(ErrorCode::kOverlap, "has parts that overlap");
      } else {
        runs.push_back(std::move(run));
      }
    }
    flat.runs = std::move(runs);
  }

  // Each rank's part has the same length, but the last ones may lack padding.
  static void place(FlatParameter& flat) {
    std::ranges::sort(flat.runs, {}, &FlatRun::begin);  // which is the rank still
    std::int64_t end = 0;
    bool last = false;
    for (FlatRun& run : flat.runs) {
      if (run.begin > kMaxRanks || (last && run.count != 0)) {
        throw Error(ErrorCode::kShape,
                    cat("has ", run.count, " elements on rank ", run.begin, ", and fewer than ",
                        flat.size.shard, " on a rank before it"));
      }
      last = last || run.count != flat.size.shard;
      if (__builtin_mul_overflow(run.begin, flat.size.shard, &run.begin))
        throw Error(ErrorCode::kOverflow, "has more than 2^63 - 1 elements");
      end = std::max(end, run.count == 0 ? 0 : run.begin + run.count);
    }
    flat.size.numel = end;
    flat.size.padded = !last;
  }

  void take_views(RankLeaves& file) {
    // Views share the storage of the rank's part.
    std::map<std::pair<std::size_t, std::string>, std::pair<std::size_t, const FlatRun*>> parts;
    for (std::size_t m = 0; m < models_.size(); ++m) {
      for (std::size_t f = 0; f < models_[m].flats.size(); ++f) {
        const FlatParameter& flat = models_[m].flats[f];
        for (const auto* runs : {&flat.runs, &flat.replicas}) {
          for (const FlatRun& run : *runs) {
            if (run.file == file.file) parts[{m, run.view.storage->key}] = {f, &run};
          }
        }
      }
    }
    std::vector<Leaf> rest;
    for (Leaf& leaf : file.leaves) {
      const std::string* const name = name_of(leaf);
      const auto model = name == nullptr ? numbers_.end() : numbers_.find(place_of(leaf));
      const auto line = model == numbers_.end() ? std::nullopt : line_of(leaf.value);
      if (line && line->shape[0] == 0) {
        empty_.push_back({std::move(leaf), rest.size(), &file});
        continue;
      }
      const auto part = line ? parts.find({model->second, line->storage->key}) : parts.end();
      if (part == parts.end()) {
        rest.push_back(std::move(leaf));
        continue;
      }
      in_context([&] { return quote(leaf.key, 200); },
                 [&] {
                   add_view(models_[model->second], *name, part->second.first, *part->second.second,
                            *line);
                 });
    }
    file.leaves = std::move(rest);
  }

  NamedParameter& named(FlatModel& model, const std::string& name, std::size_t flat) {
    const auto [at, fresh] = views_.try_emplace({&model, name}, model.named.size());
    if (fresh) model.named.push_back({.name = without_wrappers(name), .flat = flat, .in = {}});
    return model.named[at->second];
  }

  void add_view(FlatModel& model, const std::string& name, std::size_t flat, const FlatRun& run,
                const TensorValue& line) {
    NamedParameter& parameter = named(model, name, flat);
    if (parameter.flat != flat)
      throw Error(ErrorCode::kMismatch, "lies in another flat parameter in another rank's file");
    // Offsets and sizes were checked against the storage.
    const std::int64_t from = static_cast<std::int64_t>(line.storage_offset) -
                              static_cast<std::int64_t>(run.view.storage_offset);
    const std::int64_t begin = run.begin + from;
    if (from < 0 || line.shape[0] > run.count - from || line.dtype != run.view.dtype) {
      throw Error(ErrorCode::kMismatch,
                  "shares the storage of a flat parameter, and lies outside "
                  "of the part that the rank has of it");
    }
    parameter.in[run.file] = {begin, begin + line.shape[0]};
  }

  // Empty tensors are parameters of which a rank has nothing if another rank has some.
  void give_back() {
    std::map<RankLeaves*, std::size_t> given;
    for (Empty& empty : empty_) {
      FlatModel& model = models_[numbers_.at(place_of(empty.leaf))];
      const auto view = views_.find({&model, *name_of(empty.leaf)});
      if (view != views_.end()) {
        model.named[view->second].in[empty.file->file] = {};
        continue;
      }
      auto& leaves = empty.file->leaves;
      const std::size_t at = empty.position + given[empty.file]++;
      leaves.insert(leaves.begin() + static_cast<std::ptrdiff_t>(at), std::move(empty.leaf));
    }
  }

  std::vector<RankLeaves>& files_;
  std::vector<FlatModel> models_;
  std::map<KeyPath, std::size_t> numbers_;  // of models, by place
  std::map<std::pair<const FlatModel*, std::string>, std::size_t> views_;
  std::vector<Empty> empty_;
};

// Sets the members of models to the keys of the file that has all of them, in its order.
void set_members(std::vector<FlatModel>& models, const std::vector<Leaf>& leaves) {
  for (FlatModel& model : models) {
    std::unordered_map<std::string, FlatModel::Member> known;
    for (std::size_t f = 0; f < model.flats.size(); ++f) {
      const std::string name = without_wrappers(model.flats[f].key);
      known.emplace(name, FlatModel::Member{FlatModel::Member::Kind::kFlat, f, name});
    }
    for (std::size_t n = 0; n < model.named.size(); ++n) {
      const std::string& name = model.named[n].name;
      known.emplace(name, FlatModel::Member{FlatModel::Member::Kind::kNamed, n, name});
    }
    std::set<std::string> seen;
    for (const Leaf& leaf : leaves) {
      const std::string* const key = name_of(leaf);
      if (key == nullptr || place_of(leaf) != model.place) continue;
      const std::string name = without_wrappers(*key);
      if (!seen.insert(name).second)
        throw Error(ErrorCode::kKey, cat(quote(name, 200), ": two entries have this name"));
      if (const auto found = known.find(name); found != known.end()) {
        model.members.push_back(found->second);
        continue;
      }
      FlatModel::Member other{FlatModel::Member::Kind::kOther, 0, name};
      if (const auto tensor = dense_tensor(leaf.value)) other.shape = tensor->shape;
      model.members.push_back(std::move(other));
    }
  }
}

}  // namespace

std::string without_wrappers(std::string_view key) {
  std::string out;
  while (true) {
    const std::size_t dot = key.find('.');
    const std::string_view part = key.substr(0, dot);
    if (dot == key.npos || std::ranges::find(kWrappers, part) == kWrappers.end()) {
      if (!out.empty()) out += '.';
      out += part;
    }
    if (dot == key.npos) return out;
    key.remove_prefix(dot + 1);
  }
}

bool is_flat_key(std::string_view key) {
  return std::ranges::find(kFlatNames, last_part(key)) != kFlatNames.end();
}

bool is_flat_leaf(const Leaf& leaf) {
  const std::string* const name = name_of(leaf);
  if (name == nullptr || !is_flat_key(*name)) return false;
  const auto tensor = dense_tensor(leaf.value);
  return tensor ? tensor->shape.size() == 1 : special_tensor(leaf.value) == "sharded";
}

std::optional<std::size_t> FlatModel::flat_of(std::string_view name) const {
  std::optional<std::size_t> found;
  for (std::size_t f = 0; f < flats.size(); ++f) {
    const std::string& module = flats[f].module;
    const bool inside = module.empty() || (name.size() > module.size() + 1 &&
                                           name.starts_with(module) && name[module.size()] == '.');
    if (inside && (!found || flats[*found].module.size() < module.size())) found = f;
  }
  return found;
}

std::vector<FlatModel> take_flat_parameters(std::vector<RankLeaves>& files) {
  if (files.empty()) return {};
  const std::vector<Leaf> first = files.front().leaves;
  std::vector<FlatModel> models = Gathering(files).run();
  set_members(models, first);
  return models;
}

}  // namespace fsdp::formats::flat
