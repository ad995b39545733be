// SPDX-License-Identifier: Apache-2.0
// The exact list of Python names that are plain data, and the permitted uses of each.
//
// A name is a module and the path of an attribute in it: a member that getattr takes from a class
// is named with its class, as in protocol 4 ("pathlib", "PosixPath.write_text").  A name outside
// the list, or one inside it that is used in another way, may run code when Python loads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// The use of a name in a stream.
enum class NameUse : std::uint8_t {
  kValue,  // it stands in a container or an argument: a class or a constant, never a function
  kCall,   // REDUCE, OBJ, INST
  kNew,    // NEWOBJ
  kState,  // BUILD on the result of a call
  kItems,  // APPENDS, SETITEMS on the result of a call
};

// Returns the name in Python 3: builtins for __builtin__, copyreg for copy_reg.
GlobalName python_3_name(std::string_view module, std::string_view name);

// Returns whether a call of the name makes bytes, as protocol 2 writes bytes.
bool is_bytes_call(const GlobalName& name);

// Returns whether it is torch.FloatStorage or similar.
bool is_storage_class(const GlobalName& name);

// The permitted uses of a name; none if it is not in the list.
class PlainUses {
 public:
  explicit PlainUses(std::uint32_t bits = 0) : bits_(bits) {}
  bool any() const { return bits_ != 0; }
  bool has(NameUse use) const { return (bits_ >> static_cast<unsigned>(use) & 1U) != 0; }
  // Returns whether only some arguments of a call are permitted (judge_call); most names have no
  // such rule.
  bool has_argument_rule() const { return (bits_ & kArgumentRule) != 0; }
  // Returns whether argument 0 of a call may be a function, which is judged with the call.
  bool takes_function() const { return (bits_ & kTakesFunction) != 0; }

 private:
  friend struct PlainUseBits;
  static constexpr std::uint32_t kArgumentRule = 1U << 8U;
  static constexpr std::uint32_t kTakesFunction = 1U << 9U;
  std::uint32_t bits_;
};
PlainUses plain_uses(const GlobalName& name);

// An argument of a call, as far as the rules for names need it.
struct NameArgument {
  enum class Kind : std::uint8_t { kData, kText, kName, kTuple, kInt, kNone, kObject };
  Kind kind = Kind::kData;
  std::string text;  // kText
  // kInt; in a tuple that holds only numbers and data, only the sign is known
  std::int64_t number = 0;
  GlobalName name;         // kName; kObject: its class
  std::uint32_t mark = 0;  // kObject: of the call that made it
  std::vector<NameArgument> items;
};

// A call of a listed name.
struct CallJudgement {
  // The names that make the call unsafe: an argument's, or the callable's own.  Empty: it is sound.
  std::vector<GlobalName> unsafe;
  // The result, if it is a name again (getattr).
  std::optional<GlobalName> name;
  // The class of the result, if it is not the callable (copyreg._reconstructor).
  std::optional<GlobalName> cls;
  std::uint32_t mark = 0;  // what is_plain_state has to know of the result
};

// Judges a call by its arguments.  `is_allowed`: returns true for names that the caller permits.
// Requires: has_argument_rule.
CallJudgement judge_call(const GlobalName& callable, const std::vector<NameArgument>& args,
                         const std::function<bool(const GlobalName&)>& is_allowed);

// Returns whether a state may be set on the result of a call of a name with a rule.  NumPy does not
// check the state of a dtype: with wrong sizes, flags or fields it reads pointers from data.  An
// array's state must be as NumPy writes it, with a checked dtype.
// `items`: of the state, if it is a tuple.
bool is_plain_state(const GlobalName& name, std::uint32_t mark,
                    const std::vector<NameArgument>& items);

}  // namespace fsdp::formats
