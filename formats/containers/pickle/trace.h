// SPDX-License-Identifier: Apache-2.0
// Follows any pickle stream that Python would run, of every protocol, to find the names that it
// refers to and their uses.  Nothing is built, nothing is refused.
// Source: the opcode documentation in CPython's Lib/pickletools.py; Modules/_pickle.c.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// A value on the stack of a traced stream, reduced to what matters for names.
struct Term {
  enum class Kind : std::uint8_t {
    kData,    // without names, or a container whose names were reported
    kText,    // a str literal of the stream
    kName,    // a name
    kObject,  // the result of calling a name
    kTuple,   // of terms that include a text, name, object or tuple
    kFlat,    // any other tuple
    kInt,     // an int; kHugeInt for one beyond 64 bits
    kNone,
  };
  static constexpr std::int64_t kHugeInt = std::numeric_limits<std::int64_t>::max();
  Kind kind = Kind::kData;
  std::uint32_t mark = 0;  // kObject: what the host noted for the call
  // kText: offset of its opcode.  kName, kObject: number of the name.  kTuple: its number.  kFlat:
  // the code that flat_items reads.  kInt: its value.
  std::uint64_t at = 0;
};

// The use of a callable.
enum class PickleCall : std::uint8_t {
  kCalled,  // REDUCE, OBJ, INST: callable(*args)
  kNew,     // NEWOBJ, NEWOBJ_EX: cls.__new__(cls, *args)
};

class PickleTrace;

// Receives the actions of a stream.  Names are known by numbers, in the order in which they first
// occur.
class PickleTraceHost : public Interface {
 public:
  // The stream refers to a name for the first time; its number is the count of earlier names.
  virtual void name(const GlobalName& name) = 0;
  // `callable` is called.  `args`: a kTuple or kFlat; kData if they are not a tuple.  Returns the
  // term for the result.
  virtual Term call(PickleTrace& trace, PickleCall how, Term callable, Term args) = 0;
  // The name is used as a value: in a container, a key, a state, or as the whole.
  virtual void value(std::uint64_t name) = 0;
  // Items or a state are added to `target`, a kName or kObject.
  virtual void items(Term target) = 0;
  virtual void state(PickleTrace& trace, Term target, Term state) = 0;
  // The stream takes a name whose text it does not contain, or one from the registry of extensions.
  // `what` says which.
  virtual void hidden_name(const std::string& what) = 0;
};

// One stream.  Each name is reported before it is used.
//
// Memory: some 16 bytes for each value on the stack, in the memo or in a tuple; texts are not kept.
// Lifetime: source and host outlive it.
class PickleTrace {
 public:
  PickleTrace(const ByteSource& source, PickleTraceHost& host) : source_(source), host_(host) {}

  // Follows the pickle that begins at `offset`; returns the end of its STOP.
  // Throws where Python would stop as well, or where the stream cannot be followed any further:
  // kTruncated, kOpcode, kStack, kMemo, kProto, kGlobal, kIntRange, kLimitNodes; whatever the host
  // throws.  Earlier reports stay valid.
  std::uint64_t run(std::uint64_t offset);

  // For hosts.
  const GlobalName& name(std::uint64_t number) const { return names_[number]; }
  // Returns the number of a name, which is reported if it is new.
  std::uint64_t number_of(std::string_view module, std::string_view name);
  // Returns the text of a kText; nothing if it is longer than any name, or cannot be read as text.
  std::optional<std::string> text(Term term) const;
  // Returns the items of a kTuple; nothing for others.
  std::span<const Term> items(Term term) const;
  // Returns the first 15 items of a kFlat: ints as -1, 0 and 1.  If there are more, the last item
  // is an int >= 0 only if all items after it are, too.
  static std::vector<Term> flat_items(Term term);
  // Makes one tuple of the terms.
  Term tuple(std::span<const Term> terms);
  // Reports the names in `term`, which is used as a value.
  void report_value(Term term);

 private:
  class Run;
  struct TupleRange {
    std::uint64_t begin = 0;
    std::uint64_t size = 0;
    bool reported = false;
  };

  const ByteSource& source_;
  PickleTraceHost& host_;
  std::vector<GlobalName> names_;
  std::unordered_map<std::string, std::uint64_t> numbers_;  // by "module\nname"
  std::vector<Term> tuple_items_;
  std::vector<TupleRange> tuples_;
};

}  // namespace fsdp::formats
