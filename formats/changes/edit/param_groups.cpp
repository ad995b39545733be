// SPDX-License-Identifier: Apache-2.0
#include "formats/changes/edit/param_groups.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/edit/glob_use.h"
#include "formats/changes/edit/literal.h"
#include "formats/changes/edit/table_state.h"
#include "formats/state/content/content.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/placed_leaves.h"
#include "formats/state/content/state_parts.h"
#include "formats/state/rewrite/option_equality.h"
#include "formats/state/rewrite/rekey.h"

namespace fsdp::formats {
namespace {

using Group = OptimizerState::Group;

bool is_named(const Value& key, std::string_view name) {
  return key.as_string() != nullptr && *key.as_string() == name;
}

// Returns the options of a group of any form, with the lists of its parameters.
std::vector<Value::Entry> entries_of(const Group& group) {
  const auto members = members_of(group.source);
  return group.source.is_none() ? group.options
                                : std::vector<Value::Entry>(members.begin(), members.end());
}

void set_entries(Group& group, std::vector<Value::Entry> entries) {
  if (group.source.is_none())
    group.options = std::move(entries);
  else
    group.source = mapping_like(group.source, std::move(entries));
}

// Sets the list of names in the group's source to the names of its parameters.
void set_names(Group& group) {
  std::vector<Value::Entry> entries = entries_of(group);
  std::vector<Value> names;
  for (const std::string& name : group.param_names) names.push_back(Value::string(name));
  if (names.empty())
    std::erase_if(entries, [](const auto& entry) { return is_named(entry.first, "param_names"); });
  for (auto& [key, value] : entries) {
    if (is_named(key, "param_names")) value = Value::list(names);
  }
  set_entries(group, std::move(entries));
}

class GroupEditor {
 public:
  GroupEditor(const Checkpoint& checkpoint, const Value& content, const GroupEdit& edit)
      : checkpoint_(checkpoint),
        content_(content),
        edit_(edit),
        same_(checkpoint),
        use_(edit.split) {}

  GroupsEdited run() {
    const std::vector<StatePart> parts = chosen_parts();
    GroupsEdited out;
    out.content = content_;
    for (const StatePart& part : parts) {
      try {
        edit_part(part, out);
      } catch (const Error& error) {
        const std::string key = joined(part.path);
        throw error.in(checkpoint_.description().path + (key.empty() ? "" : ": " + quote(key)));
      }
    }
    use_.check_all(checkpoint_.description().path, "parameter of an optimizer");
    if (out.optimizers.empty()) {
      throw Error(ErrorCode::kUsage, checkpoint_.description().path +
                                         ": nothing would change: every parameter of the matched "
                                         "groups matches, and no option is given");
    }
    return out;
  }

 private:
  std::vector<StatePart> chosen_parts() const {
    std::vector<StatePart> parts = optimizer_parts(content_);
    if (parts.empty()) {
      throw Error(ErrorCode::kKey, checkpoint_.description().path +
                                       ": holds no optimizer state; a state is a dict "
                                       "of 'state' and 'param_groups'");
    }
    std::vector<std::string> keys;
    for (const StatePart& part : parts) keys.push_back(joined(part.path));
    if (edit_.optimizer) {
      std::erase_if(parts, [&](const auto& part) { return joined(part.path) != *edit_.optimizer; });
      if (!parts.empty()) return parts;
      const std::string near = nearest(*edit_.optimizer, keys);
      throw Error(ErrorCode::kNotFound,
                  cat(checkpoint_.description().path, ": no optimizer lies at ",
                      quote(*edit_.optimizer, 200),
                      near.empty() ? "" : "; did you mean " + quote(near, 200) + "?"));
    }
    if (parts.size() > 1 && !edit_.join.empty()) {
      throw Error(ErrorCode::kUsage,
                  cat(checkpoint_.description().path, ": holds ", parts.size(),
                      " optimizers; name the one whose groups are to be joined"));
    }
    return parts;
  }

  void edit_part(const StatePart& part, GroupsEdited& out) {
    optimizer_ = read_optimizer(
        *at_path(content_, part.path), part.kind == PartKind::kFlattenedOptimizer,
        [&](const Value& value) { return resolved(checkpoint_, value); }, std::ref(same_));
    report_ = {};
    report_.key = joined(part.path);
    report_.form = optimizer_.form;
    report_.old_groups = optimizer_.groups.size();
    keys_.clear();
    for (const Group& group : optimizer_.groups) {
      for (const std::string& key : group.params) keys_.emplace(key, key);
    }
    const bool changed = edit_.join.empty() ? split() : join();
    if (!changed) return;
    for (std::size_t g = 0; g < optimizer_.groups.size(); ++g) {
      for (const std::string& key : optimizer_.groups[g].params)
        report_.groups[g].parameters.push_back(names_of_keys_.empty() ? key
                                                                      : names_of_keys_.at(key));
    }
    out.content =
        with_value_at(out.content, part.path, write_optimizer(optimizer_, optimizer_.form, keys_));
    out.optimizers.push_back(std::move(report_));
  }

  // Returns the names of parameters by their keys.
  std::map<std::string, std::string> named() const {
    if (optimizer_.form != OptimizerForm::kIds) return keys_;
    try {
      return names_of_ids(optimizer_,
                          model_order(checkpoint_, content_, "the model in the checkpoint"));
    } catch (const Error& error) {
      throw Error(error.code(), cat(error.what(), "; globs need names"), {Remedy::kRekeyToNames});
    }
  }

  bool split() {
    names_of_keys_ = named();
    const std::size_t old = optimizer_.groups.size();
    std::vector<Group> fresh;
    std::vector<std::size_t> origins;
    std::vector<std::size_t> whole;  // groups whose parameters all match
    for (std::size_t g = 0; g < old; ++g) {
      Group& group = optimizer_.groups[g];
      report_.groups.push_back({{g}, {}});
      Group taken = group;
      Group left = group;
      divide(group, left, taken);
      if (taken.params.empty()) continue;
      if (left.params.empty()) {
        whole.push_back(g);
        continue;
      }
      refuse_tensors(g);
      set_names(left);
      set_names(taken);
      group = std::move(left);
      fresh.push_back(std::move(taken));
      origins.push_back(g);
    }
    if (optimizer_.form == OptimizerForm::kFlattened && !fresh.empty() && edit_.options.empty()) {
      throw Error(ErrorCode::kUsage,
                  "groups of a flattened optimizer differ only in their options; give the new "
                  "group another option");
    }
    for (std::size_t i = 0; i < fresh.size(); ++i) {
      whole.push_back(optimizer_.groups.size());
      optimizer_.groups.push_back(with_values_read(std::move(fresh[i])));
      report_.groups.push_back({{origins[i]}, {}});
    }
    for (const std::size_t g : whole) set_options(g);
    return !fresh.empty() || (!whole.empty() && !edit_.options.empty());
  }

  // Puts the parameters of a group whose names match into `taken`, the others into `left`.
  void divide(const Group& group, Group& left, Group& taken) {
    for (Group* part : {&left, &taken}) {
      part->params.clear();
      part->param_names.clear();
    }
    for (std::size_t i = 0; i < group.params.size(); ++i) {
      const std::string& name = names_of_keys_.at(group.params[i]);
      Group& part = use_.matches(name) ? taken : left;
      part.params.push_back(group.params[i]);
      if (!group.param_names.empty()) part.param_names.push_back(group.param_names[i]);
    }
  }

  bool join() {
    const std::vector<Group>& groups = optimizer_.groups;
    std::set<std::size_t> joined_groups;
    for (const std::size_t g : edit_.join) {
      check_position(g);
      if (!joined_groups.insert(g).second)
        throw Error(ErrorCode::kUsage, cat("group ", g, " is named twice"));
    }
    if (edit_.keep) {
      check_position(*edit_.keep);
      if (!joined_groups.contains(*edit_.keep))
        throw Error(ErrorCode::kUsage,
                    cat("group ", *edit_.keep, " is not one of the groups to be joined"));
    }
    const std::size_t kept = edit_.keep.value_or(edit_.join[0]);
    if (!edit_.keep) check_alike();
    Group whole = groups[kept];
    whole.params.clear();
    whole.param_names.clear();
    bool all_named = true;
    for (const std::size_t g : edit_.join) {
      whole.params.insert(whole.params.end(), groups[g].params.begin(), groups[g].params.end());
      whole.param_names.insert(whole.param_names.end(), groups[g].param_names.begin(),
                               groups[g].param_names.end());
      all_named = all_named && groups[g].param_names.size() == groups[g].params.size();
    }
    if (!all_named) whole.param_names.clear();
    set_names(whole);
    std::vector<Group> after;
    std::size_t place = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (g == edit_.join[0]) {
        place = after.size();
        after.push_back(whole);
        report_.groups.push_back({edit_.join, {}});
      } else if (!joined_groups.contains(g)) {
        after.push_back(groups[g]);
        report_.groups.push_back({{g}, {}});
      }
    }
    optimizer_.groups = std::move(after);
    set_options(place);
    return true;
  }

  void check_position(std::size_t g) const {
    if (g < optimizer_.groups.size()) return;
    throw Error(ErrorCode::kNotFound, cat("there is no group ", g, "; the last is ",
                                          static_cast<std::int64_t>(optimizer_.groups.size()) - 1));
  }

  // Throws kMismatch naming the options in which the groups to be joined differ.
  void check_alike() {
    std::map<std::string, std::vector<const Value*>> values;  // by option
    std::vector<std::vector<Value::Entry>> entries;
    for (const std::size_t g : edit_.join) entries.push_back(entries_of(optimizer_.groups[g]));
    for (const auto& group : entries) {
      for (const auto& [key, value] : group) {
        if (lists_parameters(key) || key.as_string() == nullptr) continue;
        values[*key.as_string()].push_back(&value);
      }
    }
    std::string differing;
    for (const auto& [option, all] : values) {
      const bool given = std::ranges::any_of(
          edit_.options, [&, &name = option](const auto& one) { return one.first == name; });
      const bool same =
          all.size() == entries.size() &&
          std::ranges::all_of(all, [&](const Value* value) { return same_(*value, *all[0]); });
      if (!same && !given) differing += (differing.empty() ? "" : ", ") + quote(option, 200);
    }
    if (differing.empty()) return;
    throw Error(ErrorCode::kMismatch, "the groups differ in " + differing);
  }

  // Throws if an option is a tensor: the old and the new group would share it.
  void refuse_tensors(std::size_t g) const {
    for (const auto& [key, value] : entries_of(optimizer_.groups[g])) {
      if (!tensor_number(value) || key.as_string() == nullptr) continue;
      throw Error(ErrorCode::kUnsupported,
                  cat("option ", quote(*key.as_string(), 200), " of group ", g,
                      " is a tensor, which two groups cannot share"));
    }
  }

  // Reads the values of the options: a placeholder may stand at one place only.
  Group with_values_read(Group group) const {
    std::vector<Value::Entry> entries = entries_of(group);
    for (auto& [key, value] : entries) value = resolved(checkpoint_, value);
    set_entries(group, std::move(entries));
    return group;
  }

  void set_options(std::size_t g) {
    Group& group = optimizer_.groups[g];
    std::vector<Value::Entry> entries = entries_of(group);
    for (const auto& [option, text] : edit_.options) {
      const auto at = std::ranges::find_if(entries, [&, &name = option](const auto& entry) {
        return !lists_parameters(entry.first) && is_named(entry.first, name);
      });
      if (at == entries.end()) refuse_option(g, option, entries);
      OptionChange change{g, option, resolved(checkpoint_, at->second), {}};
      const auto typed = value_like(change.was, text);
      if (!typed) {
        throw Error(ErrorCode::kType, cat("option ", quote(option, 200), " of group ", g, " is ",
                                          type_words(change.was), ", and ", quote(text, 200),
                                          " is ", type_words(value_of_text(text))));
      }
      change.now = *typed;
      at->second = *typed;
      report_.changes.push_back(std::move(change));
    }
    set_entries(group, std::move(entries));
  }

  [[noreturn]] static void refuse_option(std::size_t g, const std::string& option,
                                         const std::vector<Value::Entry>& entries) {
    std::vector<std::string> names;
    for (const auto& [key, value] : entries) {
      if (key.as_string() != nullptr && !lists_parameters(key)) names.push_back(*key.as_string());
    }
    const std::string near = nearest(option, names);
    throw Error(ErrorCode::kNotFound,
                cat("group ", g, " has no option ", quote(option, 200),
                    near.empty() ? "" : "; did you mean " + quote(near, 200) + "?"));
  }

  const Checkpoint& checkpoint_;
  const Value& content_;
  const GroupEdit& edit_;
  OptionEquality same_;
  GlobUse use_;
  OptimizerState optimizer_;
  EditedOptimizer report_;
  std::map<std::string, std::string> keys_;           // keys of parameters, to themselves
  std::map<std::string, std::string> names_of_keys_;  // if they are needed
};

}  // namespace

GroupsEdited edit_groups(const Checkpoint& checkpoint, const Value& content,
                         const GroupEdit& edit) {
  return GroupEditor(checkpoint, content, edit).run();
}

}  // namespace fsdp::formats
