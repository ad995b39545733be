// SPDX-License-Identifier: Apache-2.0
// A verb of the command line: its declared words, and the code that runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/base/common.h"

namespace fsdp::cli {

// Declares the words that a verb takes beyond the common ones.  Parsing writes the values, before
// Verb::run.  Lifetime: the variables belong to the verb.
class OptionSet {
 public:
  virtual ~OptionSet() = default;
  // A word without a dash, in the order of declaration.
  virtual void positional(const std::string& name, std::string& value, const std::string& help,
                          bool required) = 0;
  // Any number of further words, after the required ones.
  virtual void more(const std::string& name, std::vector<std::string>& values,
                    const std::string& help) = 0;
  // `names`: "-n,--dry-run".  The flag sets `value` to true.
  virtual void flag(const std::string& names, bool& value, const std::string& help) = 0;
  // The flag sets `value` to false: "--no-sync".
  virtual void negative_flag(const std::string& names, bool& value, const std::string& help) = 0;
  virtual void text(const std::string& names, std::string& value, const std::string& type,
                    const std::string& help) = 0;
  // May be given several times.
  virtual void list(const std::string& names, std::vector<std::string>& values,
                    const std::string& type, const std::string& help) = 0;
  virtual void choice(const std::string& names, std::string& value,
                      const std::vector<std::string>& allowed, const std::string& type,
                      const std::string& help) = 0;
  // A decimal integer within [least, most]; anything else is a usage error that names the range.
  virtual void integer(const std::string& names, std::optional<std::int64_t>& value,
                       std::int64_t least, std::int64_t most, const std::string& type,
                       const std::string& help) = 0;
  // A number such as 1e-5, not negative.
  virtual void number(const std::string& names, std::optional<double>& value,
                      const std::string& type, const std::string& help) = 0;
  // "5GB", "256MiB".
  virtual void size(const std::string& names, std::optional<std::uint64_t>& bytes,
                    const std::string& help) = 0;
  // Makes the option just declared required.
  virtual void required() = 0;
};

// A verb.  An object lives for one command line.
class Verb {
 public:
  virtual ~Verb() = default;
  virtual std::string name() const = 0;
  virtual std::string alias() const { return {}; }
  // Returns one line for the list of verbs and the top of the verb's help.
  virtual std::string description() const = 0;
  // Returns two commands, one per line.
  virtual std::vector<std::string> examples() const = 0;
  // Declares words that stand before PATH.
  virtual void declare_first(OptionSet& /*options*/) {}
  // Returns whether the verb takes PATH.
  virtual bool takes_path() const { return true; }
  virtual void declare(OptionSet& options) = 0;
  // Returns whether a team can run the verb together; otherwise its leader runs it alone.
  virtual bool divides() const { return false; }
  // Returns whether the last of the words that `OptionSet::more` takes is the output.
  virtual bool more_ends_in_output() const { return false; }
  // Returns the exit status: 0 done, sound, same; 1 the answer is no.  Throws: Error if the verb
  // failed.
  virtual int run(const CommonOptions& common, const Streams& streams) = 0;
};

}  // namespace fsdp::cli
