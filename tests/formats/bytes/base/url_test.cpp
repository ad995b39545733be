// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "formats/bytes/base/text.h"

namespace fsdp::formats {
namespace {

TEST(Url, is_told_from_a_path) {
  for (const char* url : {"https://host/a.pt", "s3://bucket/run", "gs://b", "git+ssh://h/x"})
    EXPECT_TRUE(is_url(url)) << url;
  for (const char* path : {"a.pt", "/a//b", "://x", "a b://c", "s3:/x", ""})
    EXPECT_FALSE(is_url(path)) << path;
}

}  // namespace
}  // namespace fsdp::formats
