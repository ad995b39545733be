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
  // Members of the source folder that the output lacks, because it cannot be told whether they
  // belong to the checkpoint, or because they do not.
  const std::vector<std::string>& left_behind() const { return left_behind_; }
  // Data files of the source that the output does not need.
  std::uint64_t unneeded_files() const { return unneeded_files_; }
  // Bytes of dropped items in files that the output still has.
  std::uint64_t dead_bytes() const { return dead_bytes_; }

 protected:
  std::vector<std::string> left_behind_;
  std::uint64_t unneeded_files_ = 0;
  std::uint64_t dead_bytes_ = 0;
};

// `content` is the result of content_of, with leaves moved, dropped, and replaced by plain values:
// those go into one new data file.  `folder` is the one that `source` was opened on.  Files beside
// the data files are taken over: Lightning's meta.pt, written anew if its entries changed, and
// *.pt, *.pth, *.bin, *.pkl, *.json; a seal is not.  Data files are shared by reflink if the file
// system supports it.  A data file shared by hard link is one file with two names: a save that
// overwrites it in either folder changes both, which `verify` sees by a record (shared_files.h).
//
// Files that have to be copied are checked as by `verify`.
// Lifetime: the source outlives the output.
// Throws: kRekeyCollision if two leaves have the same key; kUnsupported for items that carry their
// names in them (safetensors), for tensors inside new values, and for changes inside meta.pt; what
// verify --fast finds; what opening and reading throw.
std::unique_ptr<RewrittenDcp> plan_rewritten_dcp(const Checkpoint& source,
                                                 const std::filesystem::path& folder,
                                                 const Value& content,
                                                 const std::filesystem::path& destination,
                                                 const RewriteOptions& options);

}  // namespace fsdp::formats
