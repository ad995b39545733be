// SPDX-License-Identifier: Apache-2.0
#include "formats/families/flat/flat_optimizer.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/trainers/fairscale_metadata.h"
#include "formats/state/content/object_fields.h"

namespace fsdp::formats::flat {
namespace {

using Kind = FlatModel::Member::Kind;

// Trainers put the optimizer one or two levels below the file's object.
constexpr std::size_t kMaxDepth = 4;
// The most entries of one state: each is repeated for every parameter of a flat one, and optimizers
// have only a few.
constexpr std::size_t kMaxKinds = 64;

void find_optimizers(const Value& at, const KeyPath& path, std::vector<KeyPath>& found) {
  if (fairscale::is_optimizer(at)) {
    found.push_back(path);
    return;
  }
  const auto entries = mapping_entries(at);
  if (!entries || path.size() == kMaxDepth) return;
  for (const auto& [key, value] : *entries) {
    if (key.as_string() == nullptr) continue;
    KeyPath below = path;
    below.emplace_back(*key.as_string());
    find_optimizers(value, below, found);
  }
}

std::span<const Value> groups_of(const Value& optimizer) {
  return member(optimizer, "param_groups")->items();
}

// Returns whether parameters have numbers, and some state has one dimension or more.
bool is_numbered(const Value& optimizer) {
  for (const Value& group : groups_of(optimizer)) {
    for (const Value& id : member(group, "params")->items()) {
      if (!id.as_int()) return false;
    }
  }
  const auto states = mapping_entries(*member(optimizer, "state"));
  return std::ranges::any_of(*states, [](const Value::Entry& state) {
    const auto kinds = mapping_entries(state.second);
    return kinds && std::ranges::any_of(*kinds, [](const Value::Entry& kind) {
             const auto tensor = dense_tensor(kind.second);
             return tensor && !tensor->shape.empty();
           });
  });
}

class Reading {
 public:
  Reading(const std::map<std::uint32_t, const Value*>& roots, const FlatModel& model, KeyPath place)
      : roots_(roots), model_(model) {
    out_.place = std::move(place);
    for (const auto& [file, root] : roots) {
      const Value* const own = at_path(*root, out_.place);
      if (own == nullptr || !fairscale::is_optimizer(*own)) {
        throw Error(ErrorCode::kMetaType, cat(quote(joined(out_.place), 200),
                                              " is not an optimizer in each rank's file"));
      }
      optimizers_.emplace(file, own);
      const auto states = mapping_entries(*member(*own, "state"));
      for (const auto& [key, state] : *states) {
        if (const auto number = key.as_int()) states_[file].emplace(*number, &state);
      }
    }
  }

  FlatOptimizer run() {
    std::vector<std::int64_t> ids;
    out_.unfit = set_parameters(ids);
    for (std::size_t i = 0; i < ids.size() && out_.unfit.empty(); ++i)
      out_.unfit = read(out_.parameters[i], ids[i]);
    return std::move(out_);
  }

 private:
  // Finds the parameter of each number: by names that the groups have, else by their order, which
  // is that of the model if there is one group.  Returns why that is not possible.
  std::string set_parameters(std::vector<std::int64_t>& ids) {
    const Value& first = *optimizers_.begin()->second;
    const auto groups = groups_of(first);
    std::vector<std::string> names;
    for (const Value& group : groups) {
      for (const Value& id : member(group, "params")->items()) ids.push_back(*id.as_int());
      const Value* const said = member(group, "param_names");
      if (said == nullptr) continue;
      for (const Value& name : said->items()) {
        if (name.as_string() != nullptr) names.push_back(without_wrappers(*name.as_string()));
      }
    }
    std::vector<const FlatModel::Member*> members;
    if (names.size() == ids.size()) {
      for (const std::string& name : names) {
        const auto found = std::ranges::find(model_.members, name, &FlatModel::Member::name);
        if (found == model_.members.end())
          return cat("its parameter ", quote(name, 200), " is not in the model");
        members.push_back(&*found);
      }
    } else {
      if (groups.size() != 1) {
        return cat("it has ", groups.size(),
                   " parameter groups, and no names of parameters: which "
                   "are in which group is not known");
      }
      std::string unfit = find_members(ids, candidates(false), members);
      if (!unfit.empty() && find_members(ids, candidates(true), members).empty()) unfit.clear();
      if (!unfit.empty()) return unfit;
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::string id = cat(ids[i]);
      out_.parameters.push_back({.id = id, .member = members[i], .kinds = {}});
    }
    return {};
  }

  // Finds the parameters of one group, which are in the order of the model.  If the group has
  // fewer, because some are frozen, the sizes of their states must leave one possibility.  Returns
  // why not.
  std::string find_members(const std::vector<std::int64_t>& ids,
                           const std::vector<const FlatModel::Member*>& all,
                           std::vector<const FlatModel::Member*>& members) {
    members = all;
    if (all.size() == ids.size()) return {};
    std::string unfit = cat("it has ", ids.size(), " parameters, the model ", all.size());
    if (all.size() < ids.size()) return unfit;
    std::vector<std::size_t> first(ids.size());
    std::vector<std::size_t> last(ids.size());
    std::size_t next = 0;
    for (std::size_t i = 0; i < ids.size(); ++i, ++next) {
      while (next < all.size() && !fits(*all[next], ids[i])) ++next;
      if (next == all.size()) return unfit + ", of which none has the sizes of its states";
      first[i] = next;
    }
    next = all.size();
    for (std::size_t i = ids.size(); i-- > 0;) {
      while (!fits(*all[--next], ids[i])) {
      }
      last[i] = next;
    }
    if (first != last) return unfit + "; the sizes of its states fit several of them";
    members.clear();
    for (const std::size_t at : first) members.push_back(all[at]);
    return {};
  }

  bool fits(const FlatModel::Member& one, std::int64_t id) {
    OptimizerParameter parameter{.id = {}, .member = &one, .kinds = {}};
    return read(parameter, id).empty();
  }

  // Returns what FSDP's parameters() returns, in its order: views, or flat parameters if there are
  // no views; a view of elements that another one begins with is tied to it.  `all`: with the other
  // tensors, which may be parameters that FSDP ignores.
  std::vector<const FlatModel::Member*> candidates(bool all) const {
    std::vector<const FlatModel::Member*> out;
    std::set<std::pair<std::size_t, std::int64_t>> begins;
    for (const FlatModel::Member& one : model_.members) {
      if (one.kind == Kind::kOther && !all) continue;
      if (one.kind == Kind::kFlat && !model_.named.empty()) continue;
      if (one.kind == Kind::kNamed) {
        const NamedParameter& named = model_.named[one.number];
        std::optional<std::int64_t> begin;
        for (const auto& [file, range] : named.in) {
          if (range.begin != range.end) begin = std::min(begin.value_or(range.begin), range.begin);
        }
        if (begin && !begins.emplace(named.flat, *begin).second) continue;
      }
      if (one.kind == Kind::kOther && !is_parameter(one)) continue;
      out.push_back(&one);
    }
    return out;
  }

  // Returns the tensor of the model under a key without wrappers; nothing if there is none.
  std::optional<TensorValue> tensor_of(const FlatModel::Member& one) const {
    KeyPath path = model_.place;
    path.emplace_back(one.name);
    const Value* const value = at_path(*roots_.begin()->second, path);
    return value == nullptr ? std::nullopt : dense_tensor(*value);
  }

  bool is_parameter(const FlatModel::Member& one) const {
    const auto tensor = tensor_of(one);
    return tensor && is_floating(tensor->dtype);
  }

  std::vector<std::int64_t> shape_of_member(const FlatModel::Member& one) const {
    const auto tensor = tensor_of(one);
    return tensor ? tensor->shape : std::vector<std::int64_t>();
  }

  // Returns how many elements of a parameter a file has: with and without padding at the end.
  std::pair<std::int64_t, std::int64_t> lengths(const FlatModel::Member& one,
                                                std::uint32_t file) const {
    if (one.kind == Kind::kNamed) {
      const auto& in = model_.named[one.number].in;
      const auto range = in.find(file);
      const std::int64_t length = range == in.end() ? 0 : range->second.end - range->second.begin;
      return {length, length};
    }
    const FlatParameter& flat = model_.flats[one.number];
    for (const auto* runs : {&flat.runs, &flat.replicas}) {
      for (const FlatRun& run : *runs) {
        if (run.file == file) return {flat.size.shard, run.count};
      }
    }
    return {flat.size.shard, flat.size.shard};
  }

  // Reads the state of a parameter from all files.  Returns why it does not fit.
  std::string read(OptimizerParameter& parameter, std::int64_t id) {
    for (const auto& [file, states] : states_) {
      const auto state = states.find(id);
      const auto entries = state == states.end() ? std::nullopt : mapping_entries(*state->second);
      if (!entries) continue;
      for (const auto& [key, value] : *entries) {
        if (key.as_string() == nullptr) return "it has a state whose key is not text";
        auto kind = std::ranges::find(parameter.kinds, *key.as_string(), &OptimizerKind::name);
        if (kind == parameter.kinds.end()) {
          if (parameter.kinds.size() == kMaxKinds)
            return cat("it has more than ", kMaxKinds, " kinds of state");
          parameter.kinds.push_back({*key.as_string(), {}, {}, false});
          kind = parameter.kinds.end() - 1;
        }
        kind->values.emplace(file, &value);
        const auto tensor = dense_tensor(value);
        if (!tensor || tensor->shape.empty()) {
          if (!kind->parts.empty()) return cat("ranks differ in the state ", quote(kind->name));
          continue;
        }
        if (parameter.member->kind == Kind::kOther) {
          if (tensor->shape != shape_of_member(*parameter.member))
            return cat("the state ", quote(kind->name), " of parameter ", parameter.id, " is ",
                       shape_text(tensor->shape));
          kind->whole = true;
          kind->parts.try_emplace(file, *tensor);
          continue;
        }
        const auto [padded, valid] = lengths(*parameter.member, file);
        if (tensor->shape.size() != 1 ||
            (tensor->shape[0] != padded && tensor->shape[0] != valid)) {
          return cat("the state ", quote(kind->name), " of parameter ", parameter.id, " is ",
                     shape_text(tensor->shape), ", where a rank has ", valid,
                     " elements of the parameter");
        }
        if (valid != 0) kind->parts.emplace(file, *tensor);
      }
    }
    return {};
  }

  const std::map<std::uint32_t, const Value*>& roots_;
  const FlatModel& model_;
  std::map<std::uint32_t, const Value*> optimizers_;
  std::map<std::uint32_t, std::unordered_map<std::int64_t, const Value*>> states_;  // by number
  FlatOptimizer out_;
};

}  // namespace

std::vector<FlatOptimizer> flat_optimizers(const std::map<std::uint32_t, const Value*>& roots,
                                           const std::vector<FlatModel>& models) {
  std::vector<KeyPath> places;
  find_optimizers(*roots.begin()->second, {}, places);
  std::vector<FlatOptimizer> out;
  for (KeyPath& place : places) {
    const bool numbered = std::ranges::any_of(roots, [&](const auto& root) {
      const Value* const own = at_path(*root.second, place);
      return own != nullptr && fairscale::is_optimizer(*own) && is_numbered(*own);
    });
    if (!numbered) continue;
    if (models.size() != 1) {
      out.push_back({place, {}, "the files hold several models"});
      continue;
    }
    out.push_back(Reading(roots, models[0], std::move(place)).run());
  }
  return out;
}

std::vector<StateTarget> state_targets(const OptimizerParameter& parameter, const FlatModel& model,
                                       const ModelDivision& division) {
  const FlatModel::Member& one = *parameter.member;
  if (one.kind == Kind::kOther) return {{.name = one.name}};
  const std::size_t f = one.kind == Kind::kFlat ? one.number : model.named[one.number].flat;
  if (division.divided[f] == 0) {
    FlatRange range{0, model.flats[f].size.numel};
    if (one.kind == Kind::kNamed) {
      range = {INT64_MAX, 0};
      for (const auto& [file, in] : model.named[one.number].in) {
        if (in.begin == in.end) continue;
        range = {std::min(range.begin, in.begin), std::max(range.end, in.end)};
      }
      if (range.end == 0) return {};
    }
    const std::int64_t numel = range.end - range.begin;
    return {{.name = parameter.id,
             .flat = f,
             .begin = range.begin,
             .numel = numel,
             .shape = {numel},
             .undivided = true}};
  }
  std::vector<StateTarget> out;
  for (const DividedParameter& divided : division.parameters) {
    const bool wanted = one.kind == Kind::kFlat ? divided.flat == f && !divided.tied
                                                : divided.listed->name == one.name;
    if (!wanted) continue;
    out.push_back({.name = divided.listed->name,
                   .flat = f,
                   .begin = divided.begin,
                   .numel = divided.numel,
                   .shape = divided.listed->shape,
                   .memory_order = divided.listed->memory_order});
  }
  return out;
}

Value names_in_group(const FlatOptimizer& optimizer, std::size_t first, std::size_t count,
                     const Value& said, const FlatModel& model, const ModelDivision& division) {
  std::vector<Value> names;
  for (std::size_t i = first; i < first + count; ++i) {
    for (const StateTarget& target : state_targets(optimizer.parameters[i], model, division)) {
      if (target.undivided) return said;
      names.push_back(Value::string(target.name));
    }
  }
  return Value::list(std::move(names));
}

}  // namespace fsdp::formats::flat
