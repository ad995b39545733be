// SPDX-License-Identifier: Apache-2.0
// Reads the names of a pickle from its bytes and compares them with the exact list (plain_names.h).
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/containers/names/plain_names.h"
#include "formats/containers/pickle/trace.h"

namespace fsdp::formats {

enum class NameStatus : std::uint8_t {
  kUnsafe,   // outside the list, or used in a way that the list does not permit
  kAllowed,  // the same, but permitted by the caller
  kPlain,
};

struct ScannedName {
  GlobalName name;  // __builtin__ as builtins
  NameStatus status = NameStatus::kPlain;
};

// Scans pickles one after another and gathers their names.  Works on the bytes only: no value is
// built, and every opcode that Python runs is followed (see PickleTrace).
// Lifetime: `allowed` ("module.name") outlives it.
class NameScanner : private PickleTraceHost {
 public:
  explicit NameScanner(const std::set<std::string>& allowed) : allowed_(allowed) {}

  // Scans the pickle at `offset`; returns the end of its STOP.  Throws: like PickleTrace::run;
  // names before the error are gathered, because Python would have run them.
  std::uint64_t scan(const ByteSource& source, std::uint64_t offset = 0);

  // In the order in which they first occur.
  const std::vector<ScannedName>& names() const { return names_; }
  // Reasons why names are unknown: computed, or from the extension registry.
  const std::vector<std::string>& hidden() const { return hidden_; }

 private:
  struct State {
    std::size_t position;  // in names_
    PlainUses uses;
    bool allowed;
  };

  void name(const GlobalName& name) override;
  Term call(PickleTrace& trace, PickleCall how, Term callable, Term args) override;
  void value(std::uint64_t name) override;
  void items(Term target) override;
  void state(PickleTrace& trace, Term target, Term state) override;
  void hidden_name(const std::string& what) override;

  void use(std::uint64_t name, NameUse use);
  void mark_unsafe(const GlobalName& name);
  // Returns the name of a kName or kObject.
  const GlobalName& name_of(Term term) const { return names_[states_[term.at].position].name; }
  std::size_t position_of(const GlobalName& name);
  Term ruled_call(PickleTrace& trace, Term callable, Term args);
  bool is_allowed(const GlobalName& name) const { return allowed_.contains(name.dotted()); }

  const std::set<std::string>& allowed_;
  std::vector<ScannedName> names_;
  std::unordered_map<std::string, std::size_t> positions_;  // by dotted name
  std::vector<State> states_;                               // by number in the current stream
  std::vector<std::string> hidden_;
};

}  // namespace fsdp::formats
