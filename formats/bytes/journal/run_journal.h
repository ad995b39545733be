// SPDX-License-Identifier: Apache-2.0
// The journals of a run that writes an output: what is safe on the disk, so that a later run can go
// on from there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/team.h"
#include "formats/bytes/files/local_file.h"
#include "formats/bytes/outputs/journal.h"

namespace fsdp::formats {

// Note [journals]
// Beside the temporary ".NAME.fsdp-tmp" of an output lies the folder ".NAME.fsdp-journal":
//   plan    what the output is made of (PlanIdentity), and which file or folder is the temporary
//   rank-N  what process N of a team, or the only one, has written: a record after each extent
//
// The bytes of an extent are synced before its record is appended, and the record is synced before
// the next extent begins.  So, whenever the process or its machine ends, the records describe bytes
// that are on the disk, and at most the extent being written is done again.  Checksums of what is
// kept come from the records: reading the bytes back would cost half as much as writing them again,
// and would find only failures of the disk.
//
// A run goes on with what an earlier run left only if the plans are the same: program, arguments,
// source with its sizes and times, and the files of the output.  Times are compared for equality
// with what the file system said before, never with a clock.

// What determines the bytes of an output: pairs of a name and a value, which messages show.
class PlanIdentity {
 public:
  void add(const std::string& what, const std::string& is) { parts_.emplace_back(what, is); }
  // `add` is called when a journal first needs the parts.
  void add_later(std::function<void(PlanIdentity&)> add) { later_.push_back(std::move(add)); }
  const std::vector<std::pair<std::string, std::string>>& parts();

 private:
  std::vector<std::pair<std::string, std::string>> parts_;
  std::vector<std::function<void(PlanIdentity&)>> later_;
};

class RunJournal : public Journal {
 public:
  struct Options {
    bool asked = false;  // go on with an earlier run's journals, and keep this run's
    std::uint64_t extent_bytes = 512U << 20U;
    Team* team = &this_process();
  };
  RunJournal(std::shared_ptr<PlanIdentity> identity, const Options& options)
      : identity_(std::move(identity)), options_(options) {}

  bool records() const override { return true; }
  bool asked() const override { return options_.asked; }
  bool takes(const OutputPlace& place, int temporary) override;
  void begin(const OutputPlace& place, int temporary) override;
  void meet(const OutputPlace& place) override;
  const std::set<std::string>& kept_files() const override { return files_; }
  bool keeps() const noexcept override;
  void end() noexcept override;
  const std::vector<JournalEntry>& found() const override { return found_; }
  Error damaged(const std::string& what) const override;
  std::uint64_t room(std::size_t files) const override;
  void add(const JournalEntry& entry, const std::set<OutputFile*>& files) override;

 private:
  std::string plan_text(int temporary);
  bool read_plan(int temporary);
  void read_entries();
  FileDescriptor open_journal(const std::string& name, int flags) const;
  std::string shown(const std::string& name) const;

  std::shared_ptr<PlanIdentity> identity_;
  Options options_;
  std::string output_;     // for messages
  int parent_ = -1;        // the folder of the output, open as long as the output is written
  std::string name_;       // of the folder of journals
  FileDescriptor folder_;  // of journals
  FileDescriptor own_;
  std::vector<JournalEntry> found_;
  std::set<std::string> files_;
  std::vector<JournalEntry> pending_;
  std::set<OutputFile*> pending_files_;
  std::uint64_t pending_bytes_ = 0;
};

}  // namespace fsdp::formats
