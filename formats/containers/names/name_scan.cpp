// SPDX-License-Identifier: Apache-2.0
#include "formats/containers/names/name_scan.h"

#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

using Kind = Term::Kind;

// Arguments with rules nest no deeper: the unit of time in the state of a dtype.
constexpr int kMaxArgumentDepth = 3;
// More reasons than this add no information.
constexpr std::size_t kMaxHidden = 100;
// The most arguments that a rule examines.
constexpr std::size_t kMaxArguments = 64;

NameArgument argument_of(const PickleTrace& trace, Term term, int depth) {
  NameArgument argument;
  switch (term.kind) {
    case Kind::kText:
      argument.kind = NameArgument::Kind::kText;
      argument.text = trace.text(term).value_or("");
      break;
    case Kind::kName: {
      const GlobalName& name = trace.name(term.at);
      argument.kind = NameArgument::Kind::kName;
      argument.name = python_3_name(name.module, name.name);
      break;
    }
    case Kind::kTuple:
      argument.kind = NameArgument::Kind::kTuple;
      if (depth == kMaxArgumentDepth) break;
      for (const Term& item : trace.items(term)) {
        if (argument.items.size() == kMaxArguments) break;
        argument.items.push_back(argument_of(trace, item, depth + 1));
      }
      break;
    case Kind::kFlat:
      argument.kind = NameArgument::Kind::kTuple;
      for (const Term& item : PickleTrace::flat_items(term))
        argument.items.push_back(argument_of(trace, item, depth + 1));
      break;
    case Kind::kObject: {
      const GlobalName& name = trace.name(term.at);
      const GlobalName cls = python_3_name(name.module, name.name);
      if (is_bytes_call(cls)) break;
      argument.kind = NameArgument::Kind::kObject;
      argument.name = cls;
      argument.mark = term.mark;
      break;
    }
    case Kind::kInt:
      argument.kind = NameArgument::Kind::kInt;
      argument.number = static_cast<std::int64_t>(term.at);
      break;
    case Kind::kNone:
      argument.kind = NameArgument::Kind::kNone;
      break;
    default:
      break;
  }
  return argument;
}

}  // namespace

std::uint64_t NameScanner::scan(const ByteSource& source, std::uint64_t offset) {
  states_.clear();
  return PickleTrace(source, *this).run(offset);
}

std::size_t NameScanner::position_of(const GlobalName& name) {
  const auto [at, fresh] = positions_.try_emplace(name.dotted(), names_.size());
  if (fresh) names_.push_back({name, NameStatus::kPlain});
  return at->second;
}

void NameScanner::mark_unsafe(const GlobalName& name) {
  ScannedName& scanned = names_[position_of(name)];  // may contain `name` itself
  scanned.status = is_allowed(name) ? NameStatus::kAllowed : NameStatus::kUnsafe;
}

void NameScanner::name(const GlobalName& name) {
  const GlobalName known = python_3_name(name.module, name.name);
  const PlainUses uses = plain_uses(known);
  states_.push_back({position_of(known), uses, is_allowed(known)});
  if (!uses.any()) mark_unsafe(known);
}

void NameScanner::use(std::uint64_t number, NameUse use) {
  const State& state = states_[number];
  if (state.uses.has(use)) return;
  mark_unsafe(names_[state.position].name);
}

Term NameScanner::call(PickleTrace& trace, PickleCall how, Term callable, Term args) {
  if (callable.kind != Kind::kName) {
    trace.report_value(args);
    // A call of the result of a call is unsafe: nothing in the list returns callables.
    if (callable.kind == Kind::kObject) mark_unsafe(name_of(callable));
    return {};
  }
  use(callable.at, how == PickleCall::kNew ? NameUse::kNew : NameUse::kCall);
  const State state = states_[callable.at];
  if (state.uses.has_argument_rule() && !state.allowed) return ruled_call(trace, callable, args);
  trace.report_value(args);
  return {Kind::kObject, 0, callable.at};
}

Term NameScanner::ruled_call(PickleTrace& trace, Term callable, Term args) {
  const GlobalName name = name_of(callable);
  const bool takes_function = states_[callable.at].uses.takes_function();
  const NameArgument argument = argument_of(trace, args, 0);
  const CallJudgement judgement = judge_call(
      name, argument.items, [this](const GlobalName& other) { return is_allowed(other); });
  const auto items = trace.items(args);
  const std::vector<Term> terms(items.begin(), items.end());
  for (std::size_t i = takes_function ? 1 : 0; i < terms.size(); ++i) trace.report_value(terms[i]);
  for (const GlobalName& unsafe : judgement.unsafe) mark_unsafe(unsafe);
  if (judgement.name)
    return {Kind::kName, 0, trace.number_of(judgement.name->module, judgement.name->name)};
  if (judgement.cls)
    return {Kind::kObject, 0, trace.number_of(judgement.cls->module, judgement.cls->name)};
  return {Kind::kObject, judgement.mark, callable.at};
}

void NameScanner::value(std::uint64_t name) {
  use(name, NameUse::kValue);
}

void NameScanner::items(Term target) {
  if (target.kind == Kind::kName) return mark_unsafe(name_of(target));
  use(target.at, NameUse::kItems);
}

void NameScanner::state(PickleTrace& trace, Term target, Term state) {
  if (target.kind == Kind::kName) return mark_unsafe(name_of(target));
  use(target.at, NameUse::kState);
  const State& of = states_[target.at];
  if (!of.uses.has_argument_rule() || of.allowed) return;
  const NameArgument argument = argument_of(trace, state, 0);
  if (!is_plain_state(name_of(target), target.mark, argument.items)) mark_unsafe(name_of(target));
}

void NameScanner::hidden_name(const std::string& what) {
  if (hidden_.size() < kMaxHidden) hidden_.push_back(what);
}

}  // namespace fsdp::formats
