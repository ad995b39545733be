// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/hub_store.h"

#include <array>
#include <stdexcept>

#include <gtest/gtest.h>

#include "formats/bytes/store/published.h"
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
    const std::string round = "/api/models/org/name/tree/round?cursor=";
    if (seen.target.starts_with("/api/models/org/name/tree/round")) {
      const bool second = seen.target == round + "2";
      return HttpReply{
          200, {{"Link", "<" + round + (second ? "1" : "2") + ">; rel=\"next\""}}, "[]"};
    }
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
  test::expect_error(ErrorCode::kNetwork, "the answer is not a list of files",
                     [&] { store->list("hf://org/name@round"); });
}

// The store as one that knows digests.
const Publisher& publisher_of(const Store& store) {
  const auto* const publisher = dynamic_cast<const Publisher*>(&store);
  if (publisher == nullptr) throw std::runtime_error("the store knows no digests");
  return *publisher;
}

TEST(HubStore, KnowsTheDigestsOfACommit) {
  const std::string commit(40, 'c');
  const std::string git(40, 'a');
  const std::string sha(64, 'b');
  const std::string tree = "/api/models/org/name/tree/" + commit;
  HttpServer hub([&](const HttpRequestSeen& seen) {
    EXPECT_EQ(seen.field("authorization"), "Bearer token");
    if (seen.target == "/api/models/org/name/revision/v1?expand=sha")
      return HttpReply{200, {}, R"({"id": "org/name", "sha": ")" + commit + R"("})"};
    if (seen.target == tree + "?recursive=true") {
      return HttpReply{200,
                       {{"Link", "<" + tree + "?recursive=true&cursor=1>; rel=\"next\""}},
                       R"([{"type": "file", "path": "z.json", "size": 2, "oid": ")" + git +
                           R"(", "lfs": null}, {"type": "directory", "path": "sub", "oid": "x"}])"};
    }
    if (seen.target == tree + "?recursive=true&cursor=1") {
      return HttpReply{200,
                       {},
                       R"([{"type": "file", "path": "sub/b.bin", "size": 9, "oid": ")" + git +
                           R"(", "lfs": {"oid": ")" + sha +
                           R"(", "size": 9, "pointerSize": 127}},
                           {"type": "file", "path": "odd", "size": 1, "oid": "0"}])"};
    }
    return HttpReply{404};
  });
  const Environment environment(
      store_environment({{"HF_ENDPOINT", hub.url()}, {"HF_TOKEN", "token"}}));
  const auto store = hub_store();
  const PublishedFiles found = publisher_of(*store).published("hf://org/name@v1");
  EXPECT_EQ(found.revision, "v1");
  EXPECT_EQ(found.commit, commit);
  EXPECT_EQ(found.download, "hf download --revision " + commit + " --force-download org/name ");
  ASSERT_EQ(found.files.size(), 3U);
  EXPECT_EQ(found.files[0].name, "odd");
  EXPECT_EQ(found.files[0].digest, "");
  EXPECT_EQ(found.files[1].name, "sub/b.bin");
  EXPECT_EQ(found.files[1].kind, DigestKind::kSha256);
  EXPECT_EQ(found.files[1].digest, sha);
  EXPECT_EQ(found.files[1].bytes, 9U);
  EXPECT_EQ(found.files[2].kind, DigestKind::kGitBlob);
  EXPECT_EQ(found.files[2].digest, git);
  EXPECT_EQ(hub.seen().size(), 3U);
  test::expect_error(ErrorCode::kNotFound, "the hub has no such repository or revision",
                     [&] { publisher_of(*store).published("hf://org/name@v2"); });
  test::expect_error(ErrorCode::kNotFound, "has no such folder",
                     [&] { publisher_of(*store).published("hf://org/name@v1/none"); });
  test::expect_error(ErrorCode::kUnsupported, "digest of files in buckets",
                     [&] { publisher_of(*store).published("hf://buckets/org/name"); });
}

TEST(HubStore, RefusesListsThatContradictThemselves) {
  std::string sha = std::string(40, 'c');
  std::string list;
  HttpServer hub([&](const HttpRequestSeen& seen) {
    const bool revision = seen.path().find("/revision/") != std::string::npos;
    return HttpReply{200, {}, revision ? R"({"sha": ")" + sha + "\"}" : list};
  });
  const Environment environment(store_environment({{"HF_ENDPOINT", hub.url()}}));
  const auto store = hub_store();
  const std::string file = R"({"type": "file", "path": "a", "size": 1, "oid": "x"})";
  for (const std::string& wrong :
       {std::string("{"), std::string("{}"), "[" + file + "," + file + "]",
        std::string(R"([{"type": "file", "path": "a"}])"),
        std::string(R"([{"type": "file", "path": "a", "size": -1}])"),
        std::string(R"([{"type": "file", "path": "a", "size": 1, "lfs": {"oid": "x"}}])")}) {
    list = wrong;
    test::expect_error(ErrorCode::kNetwork, "the answer is not a list of files",
                       [&] { publisher_of(*store).published("hf://org/name"); });
  }
  list = "[" + file + "]";
  test::expect_error(ErrorCode::kNetwork, "the answer is not a list of files",
                     [&] { publisher_of(*store).published("hf://org/name/sub"); });
  sha = "main";
  test::expect_error(ErrorCode::kNetwork, "the answer does not name a commit",
                     [&] { publisher_of(*store).published("hf://org/name"); });
}

TEST(HubStore, ReadsBuckets) {
  std::string version = "xet1";
  bool direct = false;
  HttpServer files([](const HttpRequestSeen& seen) {
    EXPECT_FALSE(seen.has("authorization"));
    return HttpReply{206, {{"Content-Range", "bytes 2-5/10"}, {"ETag", "\"another\""}}, "2345"};
  });
  HttpServer hub([&](const HttpRequestSeen& seen) {
    EXPECT_EQ(seen.field("authorization"), "Bearer token");
    EXPECT_FALSE(seen.has("if-match"));
    if (seen.target == "/api/buckets/org/name/tree/a%20b") {
      // Names that begin like the folder's are others'.
      return HttpReply{200,
                       {},
                       R"([{"type": "file", "path": "a b/c", "size": 10, "xetHash": "xet1"},
              {"type": "directory", "path": "a b/deep"},
              {"type": "file", "path": "a b old", "size": 1, "xetHash": "y"},
              {"type": "directory", "path": "a b older"}])"};
    }
    if (seen.target != "/buckets/org/name/resolve/a%20b/c") return HttpReply{404};
    const std::pair<std::string, std::string> hash = {"X-Xet-Hash", version};
    if (direct)
      return HttpReply{206, {{"Content-Range", "bytes 2-5/10"}, {"ETag", "\"e\""}, hash}, "2345"};
    return HttpReply{302,
                     {{"Location", files.url() + "/x?signed"},
                      {"X-Linked-Size", "10"},
                      {"X-Linked-Etag", "\"sha\""},
                      hash}};
  });
  const Environment environment(
      store_environment({{"HF_ENDPOINT", hub.url()}, {"HF_TOKEN", "token"}}));
  const std::string url = "hf://buckets/org/name/a b/c";
  std::array<std::byte, 4> out{};
  for (const bool answers_itself : {false, true}) {
    direct = answers_itself;
    version = "xet1";
    const auto store = hub_store();
    const auto entries = store->list("hf://buckets/org/name/a b");
    ASSERT_TRUE(entries);
    ASSERT_EQ(entries->size(), 2U);
    EXPECT_EQ((*entries)[0].name, "c");
    EXPECT_EQ((*entries)[1].name, "deep");
    EXPECT_FALSE((*entries)[1].file);
    const StoredFile listed = (*entries)[0].file.value();
    EXPECT_EQ(listed.bytes, 10U);
    EXPECT_EQ(listed.version, "xet1");
    if (!direct) {
      const auto file = store->find(url);
      ASSERT_TRUE(file);
      EXPECT_EQ(file->version, "xet1");
      EXPECT_EQ(file->bytes, 10U);
    }
    out = {};
    store->read(url, listed, 2, out);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(out.data()), 4), "2345");
    version = "xet2";
    test::expect_error(ErrorCode::kChanged, "its x-xet-hash was 'xet1' and is 'xet2'",
                       [&] { hub_store()->read(url, listed, 2, out); });
  }
  const auto store = hub_store();
  EXPECT_FALSE(store->find("hf://buckets/org/name/none"));
  test::expect_error(ErrorCode::kUsage, "names a bucket, but no file in it",
                     [&] { store->fetch("hf://buckets/org/name", 1); });
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
