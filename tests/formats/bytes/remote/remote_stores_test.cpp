// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/remote_stores.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "formats/bytes/store/store.h"
#include "tests/support/http_server.h"

namespace fsdp::formats {
namespace {

bool is_loaded(const std::string& library) {
  std::ifstream maps("/proc/self/maps");
  std::stringstream text;
  text << maps.rdbuf();
  return text.str().find(library) != std::string::npos;
}

TEST(RemoteStores, LoadNothingUntilAUrlIsUsed) {
  const test::Environment environment(test::store_environment({}));
  EXPECT_EQ(store_of("s3://bkt/a"), nullptr);
  register_remote_stores();
  EXPECT_EQ(store_of("/a/path"), nullptr);
  EXPECT_EQ(store_of("ftp://host/a"), nullptr);
  EXPECT_FALSE(is_loaded("libcurl"));
  Store* const store = store_of("s3://bkt/a");
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(is_loaded("libcurl"));
  EXPECT_EQ(store_of("s3://other/b"), store);
  for (const char* url : {"gs://bkt/a", "hf://org/name/a", "https://host/a", "http://host/a"}) {
    EXPECT_NE(store_of(url), nullptr) << url;
  }
}

}  // namespace
}  // namespace fsdp::formats
