// SPDX-License-Identifier: Apache-2.0
// What is recorded of an output while it is written, so that a later run can go on with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interface.h"
#include "formats/bytes/outputs/file.h"

namespace fsdp::formats {

class OutputPlace;

// Bytes of the output that were written together, at most those of an extent.
struct JournalEntry {
  struct Run {
    std::string file;  // OutputFile::member
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint32_t crc = 0;  // of these bytes
  };
  std::vector<Run> runs;
  std::uint64_t unchecked_bytes = 0;  // of the source, read for it without a checksum
  std::string reads;                  // of the source: see text_of in partial_reads.h
};

// A journal that records nothing: what an earlier run left is removed, and this run leaves nothing.
// journal/run_journal.h has the other kind.
class Journal : public Interface {
 public:
  virtual bool records() const { return false; }
  // Returns whether this run was asked to go on with an earlier one.
  virtual bool asked() const { return false; }

  // For the code that makes the output.  The leader of a team, or a process that writes alone,
  // calls all but `meet`.
  //
  // Returns whether this run goes on with the temporary of an ended run, which is locked.
  // Throws: kMismatch if that run had another plan; kIo.
  virtual bool takes(const OutputPlace&, int /*temporary*/) { return false; }
  // Called when the temporary is this run's own.  Throws: kIo, kNoSpace.
  virtual void begin(const OutputPlace&, int /*temporary*/) {}
  // Called when all members of a team have found the temporary.
  // Throws: kIo; what Team::exchange throws.
  virtual void meet(const OutputPlace&) {}
  // Returns the files of a folder that hold bytes of an earlier run; the others are removed.
  virtual const std::set<std::string>& kept_files() const {
    static const std::set<std::string> none;
    return none;
  }
  // Returns whether the temporary stays for a later run.
  virtual bool keeps() const noexcept { return false; }
  // Called when the output is in place, or its temporary is about to be removed.
  virtual void end() noexcept {}

  // For the code that writes the bytes.
  //
  // What an earlier run wrote, the same for every member of a team.
  virtual const std::vector<JournalEntry>& found() const {
    static const std::vector<JournalEntry> none;
    return none;
  }
  // Returns the error for records in `found` that cannot be used.
  virtual Error damaged(const std::string& what) const { return {ErrorCode::kMismatch, what}; }
  // Returns the number of bytes that may be written, to `files` files at once, before the next
  // record; at least 1.
  virtual std::uint64_t room(std::size_t /*files*/) const { return UINT64_MAX; }
  // Records what was written to these files.  Less than half an extent waits for the next entry.
  // Lifetime: the files live as long as the output.  Throws: kIo, kNoSpace.
  virtual void add(const JournalEntry& /*entry*/, const std::set<OutputFile*>& /*files*/) {}
};

// Returns the journal that records nothing.
inline const std::shared_ptr<Journal>& no_journal() {
  static const auto journal = std::make_shared<Journal>();
  return journal;
}

}  // namespace fsdp::formats
