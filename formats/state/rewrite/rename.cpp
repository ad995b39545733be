// SPDX-License-Identifier: Apache-2.0
#include "formats/state/rewrite/rename.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/content.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/state_parts.h"
#include "formats/state/model/meant_name.h"
#include "formats/state/model/select.h"
#include "formats/state/rewrite/optimizer_state.h"

namespace fsdp::formats {
namespace {

using Read = std::function<Value(const Value&)>;

const std::string* text_of(const PlacedStep& step) {
  return std::get_if<std::string>(&step.step);
}

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// The place of a parameter's name in the path of a leaf.
struct NamePlace {
  std::size_t step = 0;
  std::size_t begin = 0;  // in the text of that step
  std::size_t length = 0;
};

// The parts of a state dict, found by the path of a leaf.
class Parts {
 public:
  explicit Parts(const Value& root) {
    for (const StatePart& part : state_parts_of(root)) kinds_.emplace(part.path, part.kind);
  }
  bool has_model() const {
    return std::ranges::any_of(kinds_,
                               [](const auto& part) { return part.second == PartKind::kModel; });
  }
  // Returns the kind of the part that holds the leaf, and the number of steps to that part.
  std::pair<PartKind, std::size_t> of(const PlacedLeaf& leaf) const {
    KeyPath path;
    std::pair<PartKind, std::size_t> found{PartKind::kOther, 0};
    for (std::size_t steps = 0;; ++steps) {
      const auto at = kinds_.find(path);
      if (at != kinds_.end()) found = {at->second, steps};
      if (steps == leaf.path.size() || steps > kMaxSteps) return found;
      path.push_back(leaf.path[steps].step);
    }
  }

 private:
  static constexpr std::size_t kMaxSteps = 8;  // deeper containers are not parts
  std::map<KeyPath, PartKind> kinds_;
};

std::optional<NamePlace> name_in(const PlacedLeaf& leaf, PartKind kind, std::size_t part) {
  const auto& path = leaf.path;
  if (part >= path.size()) return std::nullopt;
  const std::string* text = text_of(path[part]);
  if (text == nullptr || text->empty()) return std::nullopt;
  switch (kind) {
    case PartKind::kModel:
      // The model of a folder that also holds other things at its top level.
      if (part == 0 && path.size() != 1) return std::nullopt;
      return NamePlace{part, 0, text->size()};
    case PartKind::kOptimizer: {
      if (*text != "state" || part + 1 >= path.size()) return std::nullopt;
      const std::string* name = text_of(path[part + 1]);
      // Numbers are ids of parameters, not names.
      if (name == nullptr || path[part + 1].key.as_string() == nullptr || is_number(*name))
        return std::nullopt;
      return NamePlace{part + 1, 0, name->size()};
    }
    case PartKind::kFlattenedOptimizer: {
      const std::size_t begin =
          text->starts_with(kFlatState) ? kFlatState.size() : kFlatGroups.size();
      const std::size_t end = text->rfind('.');
      if (end == std::string::npos || end <= begin) return std::nullopt;
      return NamePlace{part, begin, end - begin};
    }
    case PartKind::kOther:
      return std::nullopt;
  }
  return std::nullopt;
}

// Returns whether the leaf is a list of parameters in an optimizer's group, or all groups.
bool may_list_names(const PlacedLeaf& leaf, PartKind kind, std::size_t part) {
  const auto& path = leaf.path;
  if (kind != PartKind::kOptimizer || path.size() <= part) return false;
  const std::string* first = text_of(path[part]);
  if (first == nullptr || *first != "param_groups") return false;
  if (path.size() == part + 1) return true;
  return path.size() == part + 3 && lists_parameters(path.back().key);
}

// Calls `visit` for every text in a list of names, and in the lists of all groups.
template <typename Visit>
void visit_names(const Value& value, const Visit& visit) {
  for (const Value& item : value.items()) {
    if (item.as_string() != nullptr) visit(*item.as_string());
    if (const auto options = mapping_entries(item)) {
      for (const auto& [key, list] : *options) {
        if (lists_parameters(key)) visit_names(list, visit);
      }
    }
  }
}

class Renamer {
 public:
  Renamer(const Value& content, const NameRules& rules, const Read& read)
      : rules_(rules), read_(read), parts_(content), leaves_(placed_leaves(content)) {}

  Renamed run() {
    find_names();
    scoped_ = scoped_rules(rules_, targets(), names_, leading_);
    const RuleTable& table = scoped_.keys;
    std::vector<char> used(table.size(), 0);
    std::vector<char> used_globs(scoped_.key_globs.size(), 0);
    std::vector<PlacedLeaf> kept;
    kept.reserve(leaves_.size());
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      PlacedLeaf& leaf = leaves_[i];
      // Both must run: each marks the rules that it used.
      const bool named = rename_names(leaf, i);
      const bool dropped = is_dropped(leaf, scoped_.key_globs, used_globs);
      if (!named || dropped) {
        out_.dropped.push_back(leaf.was);
        continue;
      }
      const std::string key = joined(key_path(leaf));
      if (const auto match = table.find(key)) {
        used[match->rule] = 1;
        move_leaf(leaf, match->bytes, table.rule(match->rule).to);
      } else if (const auto other = scoped_.beside.find(key); other && !namings_[i].place) {
        move_leaf(leaf, other->bytes, scoped_.beside.rule(other->rule).to);
      }
      std::string now = joined(key_path(leaf));
      if (now != leaf.was) out_.renamed.emplace_back(leaf.was, std::move(now));
      kept.push_back(std::move(leaf));
    }
    for (std::size_t i = 0; i < table.size(); ++i) check_used(used[i], table.rule(i).from, kept);
    for (std::size_t i = 0; i < used_globs.size(); ++i)
      check_used(used_globs[i], scoped_.key_globs[i], kept);
    out_.wrappers = std::move(scoped_.wrappers);
    out_.scopes = std::move(scoped_.scopes);
    out_.content = rebuilt(kept);
    return std::move(out_);
  }

 private:
  // How names occur in a leaf.
  struct Naming {
    std::optional<NamePlace> place;
    std::size_t part = 0;
    PartKind kind = PartKind::kOther;
    bool lists = false;
  };

  std::vector<RuleTarget> targets() const {
    std::vector<RuleTarget> targets;
    targets.reserve(leaves_.size());
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      const Naming& naming = namings_[i];
      KeyPath path = key_path(leaves_[i]);
      RuleTarget target{joined(path), naming.kind, {}, 0, 0};
      if (naming.place) {
        path.resize(naming.place->step);
        target.name_begin = joined(path).size() + (path.empty() ? 0 : 1) + naming.place->begin;
        target.name_length = naming.place->length;
      }
      path.resize(naming.part);
      target.part = joined(path);
      targets.push_back(std::move(target));
    }
    return targets;
  }

  // Throws if a rule found nothing among the keys, with the nearest front of a key.
  static void check_used(char used, std::string rule, const std::vector<PlacedLeaf>& kept) {
    if (used != 0) return;
    std::set<std::string> fronts;
    for (const PlacedLeaf& leaf : kept) {
      if (fronts.size() >= kMostNamesCompared) break;
      for (std::size_t dot = leaf.was.find('.'); dot != leaf.was.npos;
           dot = leaf.was.find('.', dot + 1))
        fronts.insert(leaf.was.substr(0, dot));
      fronts.insert(leaf.was);
    }
    const std::string message = quote(rule, 200) + " matches nothing";
    if (rule.ends_with('.')) rule.pop_back();
    const std::string near = nearest(rule, std::vector<std::string>(fronts.begin(), fronts.end()));
    throw Error(ErrorCode::kRekeyUnused,
                near.empty() ? message : cat(message, "; did you mean ", quote(near, 200), "?"));
  }

  static void check_used(char used, const Glob& glob, const std::vector<PlacedLeaf>& kept) {
    if (used != 0) return;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < std::min(kept.size(), kMostNamesCompared); ++i)
      names.push_back(kept[i].was);
    throw Error(ErrorCode::kRekeyUnused,
                cat(quote(glob.text(), 200), " matches nothing", meant_glob(glob, names)));
  }

  void find_names() {
    std::unordered_set<std::string> seen;
    const bool model = parts_.has_model();
    const auto add = [&](const std::string& name, bool leads) {
      if (is_number(name) || !seen.insert(name).second) return;
      names_.push_back(name);
      if (leads) leading_.push_back(name);
    };
    namings_.reserve(leaves_.size());
    // Models come first, so that their names count as leading.
    for (const PlacedLeaf& leaf : leaves_) {
      const auto [kind, part] = parts_.of(leaf);
      const bool lists = may_list_names(leaf, kind, part);
      namings_.push_back({name_in(leaf, kind, part), part, kind, lists});
      if (kind == PartKind::kModel && namings_.back().place)
        add(name_of(leaf, *namings_.back().place), true);
    }
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      const Naming& naming = namings_[i];
      if (naming.place) add(name_of(leaves_[i], *naming.place), !model);
      if (!naming.lists) continue;
      Value list = read_(leaves_[i].value);
      visit_names(list, [&](const std::string& name) { add(name, !model); });
      lists_.emplace(i, std::move(list));
    }
  }

  static std::string name_of(const PlacedLeaf& leaf, const NamePlace& place) {
    return text_of(leaf.path[place.step])->substr(place.begin, place.length);
  }

  // Returns false if the leaf is dropped.
  bool rename_names(PlacedLeaf& leaf, std::size_t number) {
    const Naming& naming = namings_[number];
    if (naming.lists) {
      const Value& list = lists_.at(number);
      Value renamed = renamed_list(list, leaf.was);
      if (changed_) leaf.value = std::move(renamed);
    }
    if (!naming.place) return true;
    const std::string name = name_of(leaf, *naming.place);
    const auto renamed = scoped_.renamed(name);
    if (!renamed) return false;
    PlacedStep& step = leaf.path[naming.place->step];
    if (naming.kind == PartKind::kModel) step.container = with_renamed_modules(step.container);
    if (*renamed == name) return true;
    std::string text = *text_of(step);
    text.replace(naming.place->begin, naming.place->length, *renamed);
    step = text_step(std::move(text), step);
    return true;
  }

  Value renamed_list(const Value& list, const std::string& key) {
    changed_ = false;
    return renamed_items(list, key);
  }

  Value renamed_items(const Value& list, const std::string& key) {
    std::vector<Value> items;
    std::unordered_map<std::string, std::string> taken;  // new names, with the old ones
    for (const Value& item : list.items()) {
      if (const auto options = mapping_entries(item)) {
        std::vector<Value::Entry> entries;
        for (const auto& [name, value] : *options)
          entries.emplace_back(name, lists_parameters(name) ? renamed_items(value, key) : value);
        items.push_back(Value::dict(std::move(entries)));
        continue;
      }
      const std::string* name = item.as_string();
      if (name == nullptr) {
        items.push_back(item);
        continue;
      }
      const auto renamed = scoped_.renamed(*name);
      changed_ = changed_ || renamed != *name;
      if (!renamed) continue;
      const auto [at, fresh] = taken.try_emplace(*renamed, *name);
      if (!fresh && at->second != *name) {
        throw Error(ErrorCode::kRekeyCollision, quote(key, 200), ": ", quote(at->second, 200),
                    " and ", quote(*name, 200), " would both be named ", quote(*renamed, 200));
      }
      items.push_back(Value::string(*renamed));
    }
    return list.kind() == ValueKind::kTuple ? Value::tuple(std::move(items))
                                            : Value::list(std::move(items));
  }

  // Renames the modules in a model's OrderedDict, whose attribute `_metadata` holds versions by
  // module name.
  Value with_renamed_modules(const Value& container) {
    const ObjectData* object = container.as_object();
    if (object == nullptr || !object->built) return container;
    const auto known = modules_.find(container.identity());
    if (known != modules_.end()) return known->second.second;
    ObjectData changed = *object;
    std::vector<Value::Entry> attributes;
    for (const auto& [name, value] : object->state.entries()) {
      const bool metadata = name.as_string() != nullptr && *name.as_string() == "_metadata";
      attributes.emplace_back(name, metadata ? renamed_modules(value) : value);
    }
    if (object->state.kind() == ValueKind::kDict)
      changed.state = Value::dict(std::move(attributes));
    Value out = Value::object(std::move(changed));
    modules_.emplace(container.identity(), std::pair(container, out));
    return out;
  }

  Value renamed_modules(const Value& metadata) const {
    const auto entries = mapping_entries(metadata);
    if (!entries) return metadata;
    // A wrapper and the wrapped module may get the same name: the inner one, which comes later, is
    // kept.
    std::vector<Value::Entry> renamed;
    std::unordered_map<std::string, std::size_t> places;
    for (const auto& [name, value] : *entries) {
      if (name.as_string() == nullptr) {
        renamed.emplace_back(name, value);
        continue;
      }
      std::string module = *name.as_string();
      if (!module.empty()) module = scoped_.renamed_module(module);
      const auto [at, fresh] = places.try_emplace(module, renamed.size());
      if (fresh) {
        renamed.emplace_back(Value::string(module), value);
      } else {
        renamed[at->second].second = value;
      }
    }
    return mapping_like(metadata, std::move(renamed));
  }

  static bool is_dropped(const PlacedLeaf& leaf, const std::vector<Glob>& globs,
                         std::vector<char>& used) {
    bool dropped = false;
    for (std::size_t i = 0; i < globs.size(); ++i) {
      if (!globs[i].matches(leaf.was)) continue;
      used[i] = 1;
      dropped = true;
    }
    return dropped;
  }

  const NameRules& rules_;
  const Read& read_;
  Parts parts_;
  std::vector<PlacedLeaf> leaves_;
  std::vector<Naming> namings_;  // of each leaf
  std::vector<std::string> names_;
  std::vector<std::string> leading_;
  std::map<std::size_t, Value> lists_;  // of names, by leaf
  ScopedRules scoped_;
  bool changed_ = false;
  std::unordered_map<const void*, std::pair<Value, Value>>
      modules_;  // containers, and changed ones
  Renamed out_;
};

}  // namespace

Renamed rename_content(const Value& content, const NameRules& rules, const Read& read) {
  return Renamer(content, rules, read).run();
}

}  // namespace fsdp::formats
