// SPDX-License-Identifier: Apache-2.0
// The words that a verb takes, as it declares them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace fsdp::cli {

// Where parsing writes the words of an option.  A flag has a bool; a list may be given several
// times; bytes are written as "5GB" or "256MiB".  Lifetime: the variables belong to the verb.
using OptionValue = std::variant<std::monostate, bool*, std::string*, std::vector<std::string>*,
                                 std::optional<std::int64_t>*, std::optional<double>*,
                                 std::optional<std::uint64_t>*>;

struct OptionRecord {
  std::vector<std::string> names = {};      // "-k", "--keys"; for a positional only its name
  std::vector<std::string> old_names = {};  // taken as well, and not shown
  std::string type = {};                    // the placeholder of its value; empty for a flag
  std::vector<std::string> choices = {};    // the allowed words, if limited
  std::string help = {};
  bool repeated = false;
  bool required = false;
  bool clears = false;     // a flag that sets its value to false
  std::int64_t least = 0;  // the range of an integer
  std::int64_t most = 0;
  OptionValue value = {};
};

class OptionSet {
 public:
  // Declares a word without a dash, in the order of declaration.
  void positional(const std::string& name, std::string& value, const std::string& help,
                  bool required = true);
  // Declares any number of further words, after the required ones.
  OptionRecord& more(const std::string& name, std::vector<std::string>& values,
                     const std::string& help);
  // Declares an option of the table (tools/base/option_table.h) by its long name.  `detail`: what
  // its meaning has here in addition; follows the help of the table.
  // Returns its record, valid until the next declaration.  Requires: the table has the name.
  OptionRecord& add(std::string_view name, OptionValue value, std::string_view detail = {});

  std::vector<OptionRecord> positionals;
  std::vector<OptionRecord> options;
};

}  // namespace fsdp::cli
