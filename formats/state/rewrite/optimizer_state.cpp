// SPDX-License-Identifier: Apache-2.0
#include "formats/state/rewrite/optimizer_state.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/placed_leaves.h"

namespace fsdp::formats {
namespace {

Error wrong(ErrorCode code, const std::string& what) {
  return Error(code, what);
}

// Returns a parameter's name, or its id in decimal, from a list or a key.
std::string parameter_text(const Value& value) {
  if (value.as_string() != nullptr) return *value.as_string();
  if (value.as_int() && *value.as_int() >= 0) return std::to_string(*value.as_int());
  throw wrong(ErrorCode::kType,
              cat("a parameter is ", kind_name(value.kind()), ", expected a name or an id"));
}

Value key_value(const std::string& key, OptimizerForm form) {
  return form == OptimizerForm::kIds ? Value::integer(std::stoll(key)) : Value::string(key);
}

class Reader {
 public:
  Reader(const ReadValue& read, const std::function<bool(const Value&, const Value&)>& same)
      : read_(read), same_(same) {}

  OptimizerState grouped(const Value& part) {
    out_.source = part;
    const Value* groups = member(part, "param_groups");
    bool ids = false;
    bool names = false;
    const Value list = groups == nullptr ? Value() : read_(*groups);
    for (const Value& source : list.items()) {
      OptimizerState::Group group;
      group.source = source;
      const Value* params = member(source, "params");
      if (params == nullptr)
        throw wrong(ErrorCode::kKey, cat("group ", out_.groups.size(), " lists no params"));
      const Value listed = read_(*params);
      for (const Value& item : listed.items()) {
        (item.as_string() != nullptr ? names : ids) = true;
        add_parameter(group, parameter_text(item));
      }
      if (const Value* param_names = member(source, "param_names"))
        read_names(group, read_(*param_names));
      out_.groups.push_back(std::move(group));
    }
    if (ids && names) throw wrong(ErrorCode::kKey, "its params are ids and names");
    out_.form = ids ? OptimizerForm::kIds : OptimizerForm::kNames;
    if (const Value* state = member(part, "state")) {
      const Value entries = read_(*state);
      for (const auto& [key, value] : members_of(entries)) add_state(key, value);
    }
    return std::move(out_);
  }

  OptimizerState flattened(const Value& part) {
    out_.source = part;
    out_.form = OptimizerForm::kFlattened;
    std::vector<std::string> names;
    std::unordered_map<std::string, std::vector<Value::Entry>> options;
    std::vector<std::string> state_names;
    std::unordered_map<std::string, std::vector<Value::Entry>> states;
    for (const auto& [key, value] : members_of(part)) {
      const std::string& text = *key.as_string();
      const bool is_state = text.starts_with(kFlatState);
      const std::size_t begin = is_state ? kFlatState.size() : kFlatGroups.size();
      const std::size_t dot = text.rfind('.');
      if (dot <= begin)
        throw wrong(ErrorCode::kKey, quote(text, 200) + " names neither a parameter nor an option");
      const std::string name = text.substr(begin, dot - begin);
      auto& entries = (is_state ? states : options)[name];
      if (entries.empty()) (is_state ? state_names : names).push_back(name);
      entries.emplace_back(Value::string(text.substr(dot + 1)), value);
    }
    for (const std::string& name : names) add_parameter(group_with(options.at(name)), name);
    for (const std::string& name : state_names)
      add_state(Value::string(name), Value::dict(std::move(states.at(name))));
    return std::move(out_);
  }

 private:
  void add_parameter(OptimizerState::Group& group, std::string key) {
    if (!known_.insert(key).second)
      throw wrong(ErrorCode::kKey, cat("parameter ", quote(key, 200), " is listed twice"));
    group.params.push_back(std::move(key));
  }

  void read_names(OptimizerState::Group& group, const Value& names) const {
    if (names.items().size() != group.params.size()) return;
    for (const Value& name : names.items()) {
      if (name.as_string() == nullptr) {
        group.param_names.clear();
        return;
      }
      group.param_names.push_back(*name.as_string());
    }
  }

  void add_state(const Value& key, const Value& value) {
    std::string text = parameter_text(key);
    if (!known_.contains(text)) {
      throw wrong(ErrorCode::kKey,
                  cat("holds state of ", quote(text, 200), ", which no group of parameters lists"));
    }
    out_.state.emplace_back(std::move(text), value);
  }

  OptimizerState::Group& group_with(std::vector<Value::Entry>& options) {
    for (OptimizerState::Group& group : out_.groups) {
      const bool equal =
          group.options.size() == options.size() &&
          std::ranges::all_of(options, [&](const Value::Entry& option) {
            return std::ranges::any_of(group.options, [&](const Value::Entry& other) {
              return *other.first.as_string() == *option.first.as_string() &&
                     same_(other.second, option.second);
            });
          });
      if (equal) return group;
    }
    out_.groups.push_back({{}, {}, std::move(options), {}});
    return out_.groups.back();
  }

  const ReadValue& read_;
  const std::function<bool(const Value&, const Value&)>& same_;
  std::set<std::string> known_;
  OptimizerState out_;
};

class Writer {
 public:
  Writer(const OptimizerState& optimizer, OptimizerForm form,
         const std::map<std::string, std::string>& keys)
      : optimizer_(optimizer), form_(form), keys_(keys) {}

  Value grouped() const {
    std::vector<Value::Entry> state;
    for (const auto& [key, value] : optimizer_.state) state.emplace_back(new_key(key), value);
    std::vector<Value> groups;
    for (const OptimizerState::Group& group : optimizer_.groups) groups.push_back(written(group));
    if (optimizer_.form == OptimizerForm::kFlattened) {
      return Value::dict({{Value::string("state"), Value::dict(std::move(state))},
                          {Value::string("param_groups"), Value::list(std::move(groups))}});
    }
    const Value all_groups = Value::list(std::move(groups));
    std::vector<Value::Entry> entries;
    for (const auto& [key, value] : members_of(optimizer_.source)) {
      const std::string* name = key.as_string();
      if (name != nullptr && *name == "state") {
        entries.emplace_back(key, mapping_like(value, std::exchange(state, {})));
      } else if (name != nullptr && *name == "param_groups") {
        entries.emplace_back(key, all_groups);
      } else {
        entries.emplace_back(key, value);
      }
    }
    return mapping_like(optimizer_.source, std::move(entries));
  }

  Value flattened() const {
    std::vector<Value::Entry> entries;
    for (const auto& [key, value] : optimizer_.state) {
      for (const auto& [name, kept] : members_of(value))
        entries.emplace_back(flat_key(kFlatState, key, name), kept);
    }
    for (const OptimizerState::Group& group : optimizer_.groups) {
      const auto options = options_of(group);
      for (const std::string& param : group.params) {
        for (const auto& [name, option] : options) {
          if (!lists_parameters(name))
            entries.emplace_back(flat_key(kFlatGroups, param, name), option);
        }
      }
    }
    return Value::dict(std::move(entries));
  }

 private:
  static std::span<const Value::Entry> options_of(const OptimizerState::Group& group) {
    if (const auto entries = mapping_entries(group.source)) return *entries;
    return group.options;
  }

  Value flat_key(std::string_view front, const std::string& key, const Value& name) const {
    if (name.as_string() == nullptr) {
      throw wrong(ErrorCode::kKey, cat("a key of the state or the options of ", quote(key, 200),
                                       " is ", kind_name(name.kind()), ", expected text"));
    }
    return Value::string(std::string(front) + keys_.at(key) + "." + *name.as_string());
  }

  Value new_key(const std::string& key) const { return key_value(keys_.at(key), form_); }

  Value written(const OptimizerState::Group& group) const {
    std::vector<Value> params;
    for (const std::string& param : group.params) params.push_back(new_key(param));
    std::vector<Value::Entry> entries;
    for (const auto& [key, value] : options_of(group)) {
      const bool listed = key.as_string() != nullptr && *key.as_string() == "params";
      entries.emplace_back(key, listed ? Value::list(params) : value);
    }
    if (group.source.is_none()) {
      entries.emplace_back(Value::string("params"), Value::list(params));
      return Value::dict(std::move(entries));
    }
    return mapping_like(group.source, std::move(entries));
  }

  const OptimizerState& optimizer_;
  OptimizerForm form_;
  const std::map<std::string, std::string>& keys_;
};

}  // namespace

std::string_view form_name(OptimizerForm form) {
  switch (form) {
    case OptimizerForm::kIds:
      return "by id";
    case OptimizerForm::kNames:
      return "by name";
    case OptimizerForm::kFlattened:
      return "flattened";
  }
  return "";
}

bool lists_parameters(const Value& option) {
  const std::string* name = option.as_string();
  return name != nullptr && (*name == "params" || *name == "param_names");
}

std::size_t OptimizerState::parameter_count() const {
  std::size_t count = 0;
  for (const Group& group : groups) count += group.params.size();
  return count;
}

OptimizerState read_optimizer(const Value& part, bool flattened, const ReadValue& read,
                              const std::function<bool(const Value&, const Value&)>& same) {
  Reader reader(read, same);
  return flattened ? reader.flattened(part) : reader.grouped(part);
}

Value write_optimizer(const OptimizerState& optimizer, OptimizerForm form,
                      const std::map<std::string, std::string>& keys) {
  const Writer writer(optimizer, form, keys);
  return form == OptimizerForm::kFlattened ? writer.flattened() : writer.grouped();
}

}  // namespace fsdp::formats
