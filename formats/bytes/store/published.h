// SPDX-License-Identifier: Apache-2.0
// The files of a folder of a store as they were published: their sizes and digests, without their
// bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/bytes/base/interface.h"

namespace fsdp::formats {

// A digest of a whole file, in lower-case hexadecimal digits.
enum class DigestKind {
  kSha256,   // of its bytes
  kGitBlob,  // SHA-1 of "blob ", its size, a NUL and its bytes, by which git names it
};

struct PublishedFile {
  std::string name;  // relative to the folder
  std::uint64_t bytes = 0;
  DigestKind kind = DigestKind::kSha256;
  std::string digest;  // empty: the store names none of this kind
};

// The files below a folder at one commit.
struct PublishedFiles {
  std::string revision;              // that was asked for
  std::string commit;                // that it is
  std::vector<PublishedFile> files;  // sorted by name, each name once
  // The command that downloads a file of the commit: these words, and the file's path, which begins
  // with `prefix`.
  std::string download;
  std::string prefix;
};

// A second base of stores that know digests of their files.
class Publisher : public Interface {
 public:
  // Returns the files below the folder `url`.  Throws: kNotFound; kUnsupported if the store has no
  // digests of these files; as Store::list.
  virtual PublishedFiles published(const std::string& url) const = 0;
};

}  // namespace fsdp::formats
