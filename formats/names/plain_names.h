// SPDX-License-Identifier: Apache-2.0
// The exact list of Python names that are plain data, and what may be done with each.
//
// A name is a module and the path of an attribute in it: what getattr takes from a class has the
// name of both, as protocol 4 writes it ("pathlib", "PosixPath.write_text").  What is outside the
// list, and what is inside it but used in another way, may run code when Python loads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/pickle/value.h"

namespace fsdp::formats {

// What a stream does with a name.
enum class NameUse : std::uint8_t {
  kValue,  // it stands in a container or an argument: a class or a constant, never a function
  kCall,   // REDUCE, OBJ, INST
  kNew,    // NEWOBJ
  kState,  // BUILD of what a call made
  kItems,  // APPENDS, SETITEMS on what a call made
};

// __builtin__ and copy_reg are builtins and copyreg.
GlobalName python_3_name(std::string_view module, std::string_view name);

// torch.FloatStorage and its like.
bool is_storage_class(const GlobalName& name);

// What may be done with a name; nothing where it is not in the list.
class PlainUses {
 public:
  explicit PlainUses(std::uint32_t bits = 0) : bits_(bits) {}
  bool any() const { return bits_ != 0; }
  bool has(NameUse use) const { return (bits_ >> static_cast<unsigned>(use) & 1U) != 0; }
  // A call of it depends on its arguments (judge_call); most do not.
  bool has_argument_rule() const { return (bits_ & kArgumentRule) != 0; }
  // Argument 0 of a call of it may be a function, which is judged with the call.
  bool takes_function() const { return (bits_ & kTakesFunction) != 0; }

 private:
  friend struct PlainUseBits;
  static constexpr std::uint32_t kArgumentRule = 1U << 8U;
  static constexpr std::uint32_t kTakesFunction = 1U << 9U;
  std::uint32_t bits_;
};
PlainUses plain_uses(const GlobalName& name);

// An argument of a call, as far as names go.
struct NameArgument {
  enum class Kind : std::uint8_t { kData, kText, kName, kTuple };
  Kind kind = Kind::kData;
  std::string text;  // kText
  GlobalName name;   // kName
  std::vector<NameArgument> items;
};

// A call of a listed name.
struct CallJudgement {
  // The names that make it unsafe: of an argument, or of the callable itself.  Empty: it is sound.
  std::vector<GlobalName> unsafe;
  // What the result is where it is a name again (getattr).
  std::optional<GlobalName> name;
  // The class of the result where it is not the callable (copyreg._reconstructor).
  std::optional<GlobalName> cls;
};

// Requires: has_argument_rule.  `is_allowed`: names of the caller's own, which may be anything.
CallJudgement judge_call(const GlobalName& callable, const std::vector<NameArgument>& args,
                         const std::function<bool(const GlobalName&)>& is_allowed);

}  // namespace fsdp::formats
