// SPDX-License-Identifier: Apache-2.0
// The verbs of the command line: their declared words and the code that runs.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/base/common.h"
#include "tools/base/option_set.h"

namespace fsdp::cli {

// A verb.  An object lives for one command line.
class Verb {
 public:
  // `description`: the top of the verb's help, "Say what it does: and what tells it from others".
  // What stands before the first ':' or ';', at most six words, is its line in lists of verbs.
  // `examples`: commands, one per line.
  Verb(std::string name, std::string description, std::vector<std::string> examples,
       std::string alias = {})
      : name_(std::move(name)),
        alias_(std::move(alias)),
        description_(std::move(description)),
        examples_(std::move(examples)) {}
  virtual ~Verb() = default;
  const std::string& name() const { return name_; }
  const std::string& alias() const { return alias_; }
  const std::string& description() const { return description_; }
  std::string brief() const { return description_.substr(0, description_.find_first_of(":;")); }
  const std::vector<std::string>& examples() const { return examples_; }
  // The heading under which lists show the verb; all_verbs sets it.
  const std::string& group() const { return group_; }
  void set_group(std::string_view title) { group_ = title; }
  // Declares words that stand before PATH.
  virtual void declare_first(OptionSet& /*options*/) {}
  // Returns what PATH is; empty: the verb takes none.
  virtual std::string path_help() const { return "Checkpoint: a folder or a file, of any format"; }
  virtual void declare(OptionSet& options) = 0;
  // Returns whether a team can run the verb together; otherwise its leader runs it alone.
  virtual bool divides() const { return false; }
  // Returns whether the last of the words that `OptionSet::more` takes is the output.
  virtual bool more_ends_in_output() const { return false; }
  // Returns the exit status: 0 done, sound, same; 1 the answer is no.  Throws: Error if the verb
  // failed.
  virtual int run(const CommonOptions& common, const Streams& streams) = 0;

 private:
  std::string name_;
  std::string alias_;
  std::string description_;
  std::vector<std::string> examples_;
  std::string group_;
};

// Each is made by the file with its name.
std::unique_ptr<Verb> make_inspect();
std::unique_ptr<Verb> make_consolidate();
std::unique_ptr<Verb> make_convert();
std::unique_ptr<Verb> make_shard();
std::unique_ptr<Verb> make_reshard();
std::unique_ptr<Verb> make_rekey();
std::unique_ptr<Verb> make_rename();
std::unique_ptr<Verb> make_map();
std::unique_ptr<Verb> make_maps();
std::unique_ptr<Verb> make_export();
std::unique_ptr<Verb> make_import();
std::unique_ptr<Verb> make_average();
std::unique_ptr<Verb> make_set();
std::unique_ptr<Verb> make_resize_vocab();
std::unique_ptr<Verb> make_groups();
std::unique_ptr<Verb> make_merge_lora();
std::unique_ptr<Verb> make_extract_lora();
std::unique_ptr<Verb> make_verify();
std::unique_ptr<Verb> make_latest();
std::unique_ptr<Verb> make_prune();
std::unique_ptr<Verb> make_seal();
std::unique_ptr<Verb> make_salvage();
std::unique_ptr<Verb> make_diff();
std::unique_ptr<Verb> make_stats();
std::unique_ptr<Verb> make_extract();

// Returns all verbs in the order of help, which is that of their groups.
std::vector<std::unique_ptr<Verb>> all_verbs();

}  // namespace fsdp::cli
