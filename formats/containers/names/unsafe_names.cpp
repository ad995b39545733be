// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/names/unsafe_names.h"

#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "formats/containers/names/name_scan.h"
#include "formats/containers/names/plain_names.h"
#include "formats/containers/pickle/parts.h"
#include "formats/containers/pickle/trace.h"

namespace fsdp::formats {
namespace {

// Arguments with rules nest no deeper: the unit of time in the state of an array's dtype.
constexpr int kMaxValueDepth = 6;
// The most arguments that a rule examines.
constexpr std::size_t kMaxValueItems = 64;

bool nothing_allowed(const GlobalName& /*name*/) {
  return false;
}

std::optional<GlobalName> name_of(const Value& value, int depth);

NameArgument argument_of(const Value& value, int depth) {
  NameArgument argument;
  if (depth > kMaxValueDepth) return argument;
  if (const std::string* text = value.as_string()) {
    argument.kind = NameArgument::Kind::kText;
    // Longer texts are not names; a tensor's data may be such a text.
    if (text->size() <= 1024) argument.text = *text;
  } else if (auto name = name_of(value, depth)) {
    argument.kind = NameArgument::Kind::kName;
    argument.name = *std::move(name);
  } else if (const auto number = value.as_int()) {
    argument.kind = NameArgument::Kind::kInt;
    argument.number = *number;
  } else if (value.kind() == ValueKind::kBigInt) {
    argument.kind = NameArgument::Kind::kInt;
    argument.number = Term::kHugeInt;
  } else if (value.is_none()) {
    argument.kind = NameArgument::Kind::kNone;
  } else if (value.kind() == ValueKind::kTuple) {
    argument.kind = NameArgument::Kind::kTuple;
    for (const Value& item : value.items()) {
      if (argument.items.size() == kMaxValueItems) break;
      argument.items.push_back(argument_of(item, depth + 1));
    }
  } else if (const ObjectData* object = value.as_object()) {
    if (const GlobalName* callable = object->callable.as_global()) {
      argument.kind = NameArgument::Kind::kObject;
      argument.name = python_3_name(callable->module, callable->name);
      if (plain_uses(argument.name).has_argument_rule()) {
        const CallJudgement judgement =
            judge_call(argument.name, argument_of(object->args, depth + 1).items, nothing_allowed);
        argument.mark = judgement.mark;
        if (judgement.cls) argument.name = *judgement.cls;
      }
    }
  }
  return argument;
}

// Returns a value as a name: written as one, or taken from a class by getattr.
std::optional<GlobalName> name_of(const Value& value, int depth) {
  if (const GlobalName* name = value.as_global()) return python_3_name(name->module, name->name);
  const ObjectData* object = value.as_object();
  if (object == nullptr || object->by_new || depth > kMaxValueDepth) return std::nullopt;
  const GlobalName* callable = object->callable.as_global();
  if (callable == nullptr ||
      python_3_name(callable->module, callable->name).dotted() != "builtins.getattr") {
    return std::nullopt;
  }
  return judge_call({"builtins", "getattr"}, argument_of(object->args, depth + 1).items,
                    // Accepts any name: only the name is needed.
                    [](const GlobalName&) { return true; })
      .name;
}

class Visitor {
 public:
  UnknownGlobals run(const Value& root) {
    open_.push_back({root, Place::kValue});
    while (!open_.empty()) {
      const auto [value, place] = std::move(open_.back());
      open_.pop_back();
      // Names are checked at each of their places; containers are visited once.
      if (value.kind() == ValueKind::kGlobal) {
        if (place == Place::kValue) use(*name_of(value, 0), NameUse::kValue);
        continue;
      }
      if (place == Place::kValue && value.kind() == ValueKind::kObject) {
        if (const auto name = name_of(value, 0)) use(*name, NameUse::kValue);
      }
      if (value.identity() != nullptr && !seen_.insert(value.identity()).second) continue;
      if (value.kind() == ValueKind::kObject) {
        visit_object(value);
      } else {
        for_each_part(value, [&](const Value& part) { open_.push_back({part, Place::kValue}); });
      }
    }
    return std::move(unsafe_);
  }

 private:
  enum class Place { kValue, kCallable };

  void use(const GlobalName& name, NameUse use) {
    if (!plain_uses(name).has(use)) unsafe_.insert(name.dotted());
  }

  void visit_object(const Value& value) {
    const ObjectData& object = *value.as_object();
    const auto name = name_of(object.callable, 0);
    bool judged = false;  // argument 0 is a function, which the rule of the call covers
    std::uint32_t mark = 0;
    GlobalName cls = name.value_or(GlobalName());
    if (name) {
      use(*name, object.by_new ? NameUse::kNew : NameUse::kCall);
      const PlainUses uses = plain_uses(*name);
      if (uses.has_argument_rule()) {
        const CallJudgement judgement =
            judge_call(*name, argument_of(object.args, 0).items, nothing_allowed);
        for (const GlobalName& unsafe : judgement.unsafe) unsafe_.insert(unsafe.dotted());
        if (judgement.cls) cls = *judgement.cls;
        mark = judgement.mark;
        judged = uses.takes_function();
      }
    } else if (const ObjectData* made = object.callable.as_object()) {
      // A call of the result of a call is unsafe: nothing in the list returns callables.
      unsafe_.insert(
          name_of(made->callable, 0).value_or(GlobalName{"builtins", "getattr"}).dotted());
    }
    if (object.built) {
      use(cls, NameUse::kState);
      const bool ruled = plain_uses(cls).has_argument_rule();
      if (ruled && !is_plain_state(cls, mark, argument_of(object.state, 0).items))
        unsafe_.insert(cls.dotted());
    }
    if (!object.list_items.empty() || !object.dict_items.empty()) use(cls, NameUse::kItems);
    for_each_part(value, [&](const Value& part) {
      if (&part == &object.callable) return open_.push_back({part, Place::kCallable});
      if (&part != &object.args) return open_.push_back({part, Place::kValue});
      for (const Value& arg : part.items()) {
        const bool is_judged = judged && &arg == &part.items()[0];
        open_.push_back({arg, is_judged ? Place::kCallable : Place::kValue});
      }
    });
  }

  std::vector<std::pair<Value, Place>> open_;
  std::unordered_set<const void*> seen_;
  UnknownGlobals unsafe_;
};

}  // namespace

UnknownGlobals unknown_globals_in(const Value& value) {
  return Visitor().run(value);
}

UnknownGlobals unknown_globals_in(const ByteSource& source, std::uint64_t offset, int count) {
  const std::set<std::string> none;
  NameScanner scanner(none);
  for (int i = 0; i < count; ++i) offset = scanner.scan(source, offset);
  UnknownGlobals unsafe;
  for (const ScannedName& scanned : scanner.names()) {
    if (scanned.status == NameStatus::kUnsafe) unsafe.insert(scanned.name.dotted());
  }
  return unsafe;
}

}  // namespace fsdp::formats
