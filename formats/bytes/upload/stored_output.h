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

struct StoredOutputOptions {
  bool folder = false;
  bool replace = false;  // replace what exists; else kExists
  // Says of a name whether replacing a folder may remove that file; any other file forbids it.
  std::function<bool(std::string_view name)> replaced;
  // Says whether a file of that name is a seal.
  std::function<bool(std::string_view name)> seals;
};

// Note [outputs in a store]
// A store has no folders that could be renamed, but nothing of a file is seen before its upload is
// complete.  So all files of an output are sent first, and become visible only in `commit`: data
// files, then those that lead a reader to them (.metadata, an index), then the seal.  Who looks
// before finds no checkpoint.  A file of that name that appears meanwhile is never replaced, unless
// that was asked for.
//
// Where a folder is replaced, files of the old checkpoint that the new one lacks go last.  If no
// data file of the new one has the name of an old one, the old checkpoint stays whole until the
// file that leads to data is replaced.  Otherwise that file goes first: then there is no checkpoint
// at that place for a while, never one whose metadata are of another than its data.
//
// A run that fails, or is asked to stop, takes back what it sent and what it made visible, as far
// as Note [taking back] allows.  What is left then stands in the error: the new one without its
// seal is in place, old files are yet to be removed, or nobody knows.  One that is
// killed before `commit` leaves uploads that nobody sees.
class StoredOutput : private Unfinished {
 public:
  // Throws: kUsage (names no file), kExists, kNotRegular (a folder at the place of a file, or the
  // other way), kUnsupported (the store cannot list); what Store throws; kIo of the spool.
  StoredOutput(Store& store, const std::string& url, StoredOutputOptions options);
  StoredOutput(const StoredOutput&) = delete;
  StoredOutput& operator=(const StoredOutput&) = delete;
  ~StoredOutput() override;

  // A new file of the output, which the caller writes into its file of the spool, and tells the
  // upload.  `name`: "a" or "a/b" inside the folder; empty for the single file.
  // Throws: kPath, kExists (added before), kIo, kNoSpace.
  struct Added {
    std::filesystem::path spool;
    std::string shown;  // for messages
    std::shared_ptr<PartUpload> upload;
  };
  Added add(const std::string& name);
  // Returns when everything that is whole was sent.  Throws: kInterrupted; what Store throws.
  void await_sent() { senders_.wait(); }
  // The output as the spool has it: of the length of the output, with zeros in the place of bytes
  // that were sent.
  std::filesystem::path spooled() const { return spool_.path() / kRoot; }
  // Makes it visible.  Requires: all files are finished.
  // Throws: kExists (appeared meanwhile), kInterrupted; what Store throws.
  void commit();
  // Writes a small file beside the output, as `url` + `ending`.
  void put_beside(std::string_view ending, std::string_view text);
  // Removes that file, if there is one.
  void remove_beside(std::string_view ending);

  // The destination for messages, escaped.
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
  std::mutex ending_;      // taken by who takes everything back
  bool ended_ = false;
  std::atomic<bool> committed_{false};
  SenderPool senders_;  // last: its threads use all above
};

}  // namespace fsdp::formats
