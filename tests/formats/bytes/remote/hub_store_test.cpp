// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/hub_store.h"

#include <array>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"

namespace fsdp::formats {
namespace {

using test::Environment;
using test::HttpReply;
using test::HttpRequestSeen;
using test::HttpServer;
using test::store_environment;

TEST(HubStore, ReadsLargeFilesFromElsewhereAndKeepsItsToken) {
  HttpServer files([](const HttpRequestSeen& seen) {
    EXPECT_FALSE(seen.has("authorization"));
    EXPECT_FALSE(seen.has("if-match"));
    return HttpReply{206, {{"Content-Range", "bytes 2-5/10"}, {"ETag", "\"another\""}}, "2345"};
  });
  HttpServer hub([&](const HttpRequestSeen& seen) {
    EXPECT_EQ(seen.field("authorization"), "Bearer token");
    EXPECT_EQ(seen.target, "/org/name/resolve/refs%2Fpr%2F1/a%20b/model.safetensors");
    return HttpReply{302,
                     {{"Location", files.url() + "/x?signed"},
                      {"X-Linked-Size", "10"},
                      {"X-Linked-Etag", "\"sha\""}}};
  });
  const Environment environment(
      store_environment({{"HF_ENDPOINT", hub.url()}, {"HF_TOKEN", "token"}}));
  const auto store = hub_store();
  const std::string url = "hf://org/name@refs/pr/1/a b/model.safetensors";
  const auto file = store->find(url);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->bytes, 10U);
  EXPECT_EQ(file->version, "sha");
  EXPECT_TRUE(files.seen().empty());
  std::array<std::byte, 4> out{};
  for (int i = 0; i < 2; ++i) {
    out = {};
    store->read(url, *file, 2, out);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(out.data()), 4), "2345");
  }
  EXPECT_EQ(hub.seen().size(), 2U);
  EXPECT_EQ(files.seen().size(), 2U);
  test::expect_error(ErrorCode::kChanged, "its ETag was 'old' and is 'sha'", [&] {
    hub_store()->read(url, {10, "old", 0}, 2, out);
  });
}

TEST(HubStore, FindsSmallFilesAndMovedRepositories) {
  HttpServer hub([](const HttpRequestSeen& seen) {
    if (seen.target == "/datasets/org/old/resolve/main/c.json") {
      return HttpReply{307, {{"Location", "/datasets/org/new/resolve/main/c.json"}}};
    }
    if (seen.target == "/datasets/org/new/resolve/main/c.json")
      return HttpReply{200, {{"ETag", "\"git\""}}, "{}"};
    if (seen.target == "/org/gated/resolve/main/c.json") return HttpReply{401};
    return HttpReply{404};
  });
  const Environment environment(store_environment({{"HF_ENDPOINT", hub.url()}}));
  const auto store = hub_store();
  const auto file = store->find("hf://datasets/org/old/c.json");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->bytes, 2U);
  EXPECT_EQ(file->version, "git");
  EXPECT_FALSE(hub.seen().at(0).has("authorization"));
  EXPECT_FALSE(store->find("hf://org/none/c.json"));
  EXPECT_FALSE(store->find("hf://org/none"));
  test::expect_error(ErrorCode::kAccess, "hf://org/gated/c.json: the server refuses: 401",
                     [&] { store->find("hf://org/gated/c.json"); });
}

TEST(HubStore, ListsPageByPage) {
  HttpServer hub([&](const HttpRequestSeen& seen) {
    if (seen.target == "/api/models/org/name/tree/v1/sub") {
      return HttpReply{200,
                       {{"Link", "</api/models/org/name/tree/v1/sub?cursor=1>; rel=\"next\""}},
                       R"([{"type": "file", "path": "sub/a.json", "size": 2, "oid": "git"},
                           {"type": "directory", "path": "sub/deep", "oid": "x"}])"};
    }
    if (seen.target == "/api/models/org/name/tree/v1/sub?cursor=1") {
      return HttpReply{
          200,
          {},
          R"([{"type": "file", "path": "sub/b.bin", "size": 9, "oid": "p", "lfs": {"oid": "sha"}}])"};
    }
    if (seen.target == "/api/models/org/name/tree/main") return HttpReply{200, {}, "{}"};
    return HttpReply{404};
  });
  const Environment environment(store_environment({{"HF_ENDPOINT", hub.url()}}));
  const auto store = hub_store();
  const auto entries = store->list("hf://org/name@v1/sub");
  ASSERT_TRUE(entries);
  ASSERT_EQ(entries->size(), 3U);
  EXPECT_EQ((*entries)[0].name, "a.json");
  EXPECT_EQ((*entries)[0].file->version, "git");
  EXPECT_EQ((*entries)[1].name, "deep");
  EXPECT_FALSE((*entries)[1].file);
  EXPECT_EQ((*entries)[2].file->version, "sha");
  EXPECT_EQ((*entries)[2].file->bytes, 9U);
  EXPECT_TRUE(store->list("hf://org/name@v1/none")->empty());
  test::expect_error(ErrorCode::kNetwork, "hf://org/name: the answer is not a list of files",
                     [&] { store->list("hf://org/name"); });
}

TEST(HubStore, RefusesWhatNamesNothing) {
  const Environment environment(store_environment({}));
  const auto store = hub_store();
  for (const char* wrong :
       {"hf://", "hf://org", "hf://org/", "hf:///name/a", "hf://org@v/name/a"}) {
    test::expect_error(ErrorCode::kUsage, "does not name a repository",
                       [&] { store->list(wrong); });
  }
  test::expect_error(ErrorCode::kUsage, "without a revision",
                     [&] { store->list("hf://org/name@/a"); });
  test::expect_error(ErrorCode::kUsage, "no file in it", [&] { store->fetch("hf://org/name", 1); });
  test::expect_error(ErrorCode::kUnsupported, "cannot be written",
                     [&] { store->put("hf://org/name/a", {}, false); });
  const Environment elsewhere("HF_ENDPOINT", "hub");
  test::expect_error(ErrorCode::kUsage, "HF_ENDPOINT is not an https or http URL",
                     [] { hub_store(); });
}

}  // namespace
}  // namespace fsdp::formats
