// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/files/git_blob.h"

#include <string_view>

#include <gtest/gtest.h>

namespace fsdp::formats {
namespace {

std::string digest_of(std::string_view content, std::size_t part) {
  GitBlobDigest digest(content.size());
  for (std::size_t at = 0; at < content.size(); at += part)
    digest.add(std::as_bytes(std::span(content.substr(at, part))));
  return digest.finish();
}

// The digests that `git hash-object` prints.
TEST(GitBlob, is_what_git_says) {
  EXPECT_EQ(digest_of("", 1), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  EXPECT_EQ(digest_of("hello\n", 6), "ce013625030ba8dba906f756967f9e9ca394464a");
  EXPECT_EQ(digest_of("hello\n", 4), "ce013625030ba8dba906f756967f9e9ca394464a");
  EXPECT_EQ(digest_of(std::string(100'000, 'x'), 4096), "56e0448612acbb706b96b7e8e46a210f15386a38");
}

}  // namespace
}  // namespace fsdp::formats
