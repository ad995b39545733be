// SPDX-License-Identifier: Apache-2.0
// A torch.distributed.checkpoint folder under other names and with other values: `.metadata` is
// written anew, the data files are shared with the source.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "formats/bytes/outputs/options.h"
#include "formats/state/content/output.h"

namespace fsdp::formats {

struct RewriteOptions {
  OutputOptions output;
  bool link = true;  // share data files if the file systems allow it; else copy
};

class RewrittenDcp : public Output {
 public:
  // Returns the members of the source folder that the output lacks because they do not, or may not,
  // belong to the checkpoint.
  const std::vector<std::string>& left_behind() const { return left_behind_; }
  // Returns the number of data files of the source that the output does not need.
  std::uint64_t unneeded_files() const { return unneeded_files_; }
  // Returns the bytes of dropped items in files that the output still has.
  std::uint64_t dead_bytes() const { return dead_bytes_; }

 protected:
  using Output::Output;
  std::vector<std::string> left_behind_;
  std::uint64_t unneeded_files_ = 0;
  std::uint64_t dead_bytes_ = 0;
};

// Plans a rewritten folder.  `content` is the result of content_of, with leaves moved, dropped, and
// replaced by plain values, which go into one new data file.  `folder` is the one that `source` was
// opened on.  Files beside the data files are taken over: Lightning's meta.pt, written anew if its
// entries changed, and *.pt, *.pth, *.bin, *.pkl, *.json; a seal is not.  Data files are shared by
// reflink if the file system supports it.  A data file shared by hard link is one file with two
// names: a save that overwrites it in either folder changes both, which `verify` detects by a
// record (shared_files.h).
//
// If files must be copied, the source is checked as by `verify`.
// Lifetime: the source outlives the output.
// Throws: kRekeyCollision if two leaves have the same key; kUnsupported for items that contain
// their own names (safetensors), for tensors inside new values, and for changes inside meta.pt; the
// damage that verify --fast finds; the errors of opening and reading.
std::unique_ptr<RewrittenDcp> plan_rewritten_dcp(const StoredCheckpoint& source,
                                                 const std::filesystem::path& folder,
                                                 const Value& content,
                                                 const std::filesystem::path& destination,
                                                 const RewriteOptions& options);

}  // namespace fsdp::formats
