// SPDX-License-Identifier: Apache-2.0
// A file or folder that appears in a store whole or not at all, as far as a store can do that.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/store/store.h"
#include "formats/bytes/upload/appearance.h"
#include "formats/bytes/upload/part_upload.h"
#include "formats/bytes/upload/sender_pool.h"
#include "formats/bytes/upload/spool.h"
#include "formats/bytes/upload/unfinished.h"

namespace fsdp::formats {

// The most folders, each in the one before, that lie in a folder that is written: a step, a part of
// it, DeepSpeed's tag, its zero/ and the folder of a parameter.
constexpr int kMaxInnerFolders = 5;

struct StoredOutputOptions {
  bool folder = false;
  bool replace = false;  // replace what exists; else kExists
  // Tells whether replacing a folder may remove the file of that name; any other file forbids
  // replacing.
  std::function<bool(std::string_view name)> replaced;
  // Tells whether a file of that name is a seal.
  std::function<bool(std::string_view name)> seals;
};

// Note [outputs in a store]
// Folders in a store cannot be renamed, but a file is invisible until its upload is complete.  So
// all files of an output are sent first, and become visible only in `commit`: data files, then
// those that lead a reader to them (.metadata, an index), then the seal.  A reader that looks
// earlier finds no checkpoint.  A file of the same name that appears meanwhile is replaced only on
// request.
//
// Where a folder is replaced, files of the old checkpoint that the new one lacks are removed last.
// If no data file of the new one has the name of an old one, the old checkpoint stays whole until
// the file that leads to data is replaced.  Otherwise that file is removed first: for a while there
// is no checkpoint at that place, but never metadata with the data of another checkpoint.
//
// A run that fails, or is asked to stop, takes back what it sent and what it made visible, as far
// as Note [taking back] allows.  The error then says what is left: the new checkpoint is in place
// without its seal, old files are yet to be removed, or the state is unknown.  A run that is killed
// before `commit` leaves uploads that are invisible.
class StoredOutput : private Unfinished {
 public:
  // Throws: kUsage (names no file), kExists, kNotRegular (a folder at the place of a file, or the
  // other way), kUnsupported (the store cannot list); what Store throws; kIo of the spool.
  StoredOutput(Store& store, const std::string& url, StoredOutputOptions options);
  ~StoredOutput() override;

  // A new file of the output.  The caller writes to the file `spool` and reports the bytes to the
  // upload.  `name`: "a" or "a/b" inside the folder; empty for the single file.
  // Throws: kPath, kExists (added before), kIo, kNoSpace.
  struct Added {
    std::filesystem::path spool;
    std::string shown;  // for messages
    std::shared_ptr<PartUpload> upload;
  };
  Added add(const std::string& name);
  // Returns when all complete parts were sent.  Throws: kInterrupted; what Store throws.
  void await_sent() { senders_.wait(); }
  // Returns the output in the spool: as long as the output, with zeros in place of sent bytes.
  std::filesystem::path spooled() const { return spool_.path() / kRoot; }
  // Makes the output visible.  Requires: all files are finished.
  // Throws: kExists (appeared meanwhile), kInterrupted; what Store throws.
  void commit();
  // Writes a small file beside the output, as `url` + `ending`.
  void put_beside(std::string_view ending, std::string_view text);
  // Removes the file beside the output, if there is one.
  void remove_beside(std::string_view ending);

  // Returns the escaped destination, for messages.
  const std::string& shown() const { return shown_; }

 private:
  static constexpr const char* kRoot = "output";
  struct Member {
    std::string name;
    std::shared_ptr<PartUpload> upload;
  };
  using Names = std::vector<std::string>;

  void abandon() noexcept override;
  void take_back() noexcept;
  void check_file() const;
  Names members_of(const std::string& folder, const std::string& prefix, bool nested) const;
  Names check_folder() const;
  std::string url_of(const std::string& name) const;
  void show(const Member& member) const;
  void complete(const std::vector<const Member*>& members);
  void remove_all(const Names& names);
  void commit_folder();
  Error ended_in(const Error& error, const std::string& old_one);

  Store& store_;
  std::string url_;
  const StoredOutputOptions options_;
  const std::string shown_;
  Spool spool_;
  std::vector<Member> members_;
  std::set<std::string> names_;  // of the members
  std::mutex members_mutex_;
  Appearance appearance_;  // of the members of a folder
  std::mutex ending_;      // held to take everything back
  bool ended_ = false;
  std::atomic<bool> committed_{false};
  SenderPool senders_;  // last: its threads use all above
};

}  // namespace fsdp::formats
