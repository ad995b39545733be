// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/hub_store.h"

#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/encoding.h"
#include "formats/bytes/http/secret.h"
#include "formats/bytes/remote/profile_files.h"
#include "formats/bytes/remote/web_store.h"
#include "formats/bytes/store/small_file.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kMostMembers = 1'000'000;
constexpr std::size_t kMostTree = std::size_t{16} << 20U;
constexpr std::size_t kMostHubToken = 4096;

// The parts of a hub URL.
struct HubPlace {
  std::string kind;      // "models", "datasets", "spaces"
  std::string repo;      // "org/name"
  std::string revision;  // "main"
  std::string path;      // in the repository; empty: its root
};

// Finds the end of a revision.  "refs/pr/1" and "refs/convert/parquet" are revisions despite their
// slashes.
std::size_t end_of_revision(std::string_view text) {
  std::size_t from = 0;
  if (text.starts_with("refs/pr/")) from = 8;
  if (text.starts_with("refs/convert/")) from = 13;
  return std::min(text.find('/', from), text.size());
}

HubPlace hub_place(const std::string& url) {
  HubPlace place{"models", {}, "main", {}};
  std::string_view rest = std::string_view(url).substr(5);
  for (const char* kind : {"datasets", "spaces"}) {
    if (rest.starts_with(cat(kind, '/'))) {
      place.kind = kind;
      rest.remove_prefix(place.kind.size() + 1);
    }
  }
  const std::size_t org = rest.find('/');
  const std::size_t name = org == std::string_view::npos ? org : rest.find_first_of("/@", org + 1);
  place.repo = rest.substr(0, name);
  if (org == 0 || org == std::string_view::npos || place.repo.size() == org + 1 ||
      place.repo.find('@') != std::string::npos) {
    throw Error(
        ErrorCode::kUsage,
        escape(url) + ": does not name a repository: expected hf://org/repo[@revision]/path");
  }
  rest.remove_prefix(place.repo.size());
  if (rest.starts_with('@')) {
    rest.remove_prefix(1);
    const std::size_t end = end_of_revision(rest);
    const auto revision = percent_decode(rest.substr(0, end), false);
    if (!revision || revision->empty())
      throw Error(ErrorCode::kUsage, escape(url) + ": has an @ without a revision after it");
    place.revision = *revision;
    rest.remove_prefix(end);
  }
  if (rest.starts_with('/')) place.path = rest.substr(1);
  return place;
}

Secret read_hub_token() {
  std::string token = environment_value("HF_TOKEN");
  if (token.empty()) {
    std::string file = environment_value("HF_TOKEN_PATH");
    std::string home = environment_value("HF_HOME");
    if (home.empty()) home = environment_value("HOME") + "/.cache/huggingface";
    if (file.empty()) file = home + "/token";
    token = read_small_file(file, kMostHubToken).value_or("");
  }
  token.erase(token.find_last_not_of(" \t\r\n") + 1);
  if (token.find_first_of("\r\n") != std::string::npos)
    throw Error(ErrorCode::kUsage, "the token of the hub has more than one line");
  return Secret(std::move(token));
}

// Returns the URL in `Link: <...>; rel="next"`; empty: there is none.
std::string next_page(const HttpHead& head) {
  const std::string* link = head.find("link");
  if (link == nullptr || link->find("rel=\"next\"") == std::string::npos) return {};
  const std::size_t open = link->find('<');
  const std::size_t close = link->find('>');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  return link->substr(open + 1, close - open - 1);
}

std::string text_member(const Json& json, std::string_view name) {
  const Json* member = json.find(name);
  const std::string* text = member == nullptr ? nullptr : member->as_string();
  return text == nullptr ? std::string() : *text;
}

class HubStore final : public WebStore {
 public:
  HubStore() : endpoint_(read_endpoint()), token_(read_hub_token()) {}

  std::optional<StoredFile> find(const std::string& url) const override {
    if (hub_place(url).path.empty()) return std::nullopt;
    Patience patience(escape(url));
    const Dialect dialect;
    Address address = home_of(url);
    for (int hop = 0;; ++hop) {
      const HttpAnswer answer = exchange(http(), patience, dialect, [&] {
        HttpRequest request;
        request.method = "HEAD";
        request.url = address.text();
        introduce(request);
        return request;
      });
      StoredFile file;
      if (describe_elsewhere(answer.head, file)) return file;
      auto next = next_address(patience.place(), address, answer.head, hop);
      const bool stays =
          next && next->scheme == endpoint_.scheme && next->authority == endpoint_.authority;
      if (next && !stays) return WebStore::find(url);
      if (next) {
        address = *std::move(next);
        continue;
      }
      if (answer.head.status == 404) return std::nullopt;
      if (answer.head.status != 200) throw refusal(patience.place(), answer, dialect);
      const auto found = file_of_head(answer.head);
      return found ? found : WebStore::find(url);
    }
  }

  std::optional<std::vector<StoredEntry>> list(const std::string& url) const override {
    const HubPlace place = hub_place(url);
    Patience patience(escape(url));
    const Dialect dialect;
    const auto wrong = [&] {
      return Error(ErrorCode::kNetwork, patience.place() + ": the answer is not a list of files");
    };
    const std::string prefix = place.path.empty() ? std::string() : place.path + '/';
    std::vector<StoredEntry> entries;
    Address page = at(cat("api/", place.kind, '/', encode_path(place.repo), "/tree/",
                          percent_encode(place.revision), place.path.empty() ? "" : "/",
                          encode_path(place.path)));
    for (;;) {
      const HttpAnswer answer = follow(
          http(), patience, dialect, page,
          [&](const Address& address, bool at_home) {
            HttpRequest request;
            request.url = address.text();
            if (at_home) introduce(request);
            return request;
          },
          nullptr, nullptr, kMostTree);
      if (answer.head.status == 404) {
        // The hub answers 404 for a missing folder as well as for a missing repository.
        return std::vector<StoredEntry>();
      }
      if (answer.head.status != 200) throw refusal(patience.place(), answer, dialect);
      Json json;
      try {
        json = parse_json(answer.text);
      } catch (const Error&) {
        throw wrong();
      }
      if (json.as_array() == nullptr) throw wrong();
      for (const Json& member : *json.as_array()) {
        std::string name = text_member(member, "path");
        if (!name.starts_with(prefix)) throw wrong();
        StoredEntry entry{name.substr(prefix.size()), std::nullopt};
        if (text_member(member, "type") == "file") {
          const Json* size = member.find("size");
          if (size == nullptr || size->as_int() == nullptr || *size->as_int() < 0) throw wrong();
          const Json* large = member.find("lfs");
          const std::string large_id =
              large == nullptr ? std::string() : text_member(*large, "oid");
          entry.file = StoredFile{static_cast<std::uint64_t>(*size->as_int()),
                                  large_id.empty() ? text_member(member, "oid") : large_id, 0};
        }
        if (entries.size() == kMostMembers) {
          throw Error(ErrorCode::kLimitEntries, patience.place(), ": has more than ", kMostMembers,
                      " members");
        }
        entries.push_back(std::move(entry));
      }
      const std::string next = next_page(answer.head);
      if (next.empty()) return entries;
      const auto address = redirected(page, next);
      if (!address || address->authority != page.authority || address->target == page.target)
        throw wrong();
      page = *address;
    }
  }

 protected:
  Address home_of(const std::string& url) const override {
    const HubPlace place = hub_place(url);
    if (place.path.empty())
      throw Error(ErrorCode::kUsage, escape(url) + ": names a repository, but no file in it");
    const std::string kind = place.kind == "models" ? std::string() : place.kind + '/';
    return at(cat(kind, encode_path(place.repo), "/resolve/", percent_encode(place.revision), '/',
                  encode_path(place.path)));
  }

  void introduce(HttpRequest& request) const override {
    const bool kept_secret = endpoint_.scheme == "https" || is_loopback(endpoint_.authority);
    if (!token_.empty() && kept_secret)
      request.fields.emplace_back("authorization", "Bearer " + token_.reveal());
  }

  bool describe_elsewhere(const HttpHead& head, StoredFile& file) const override {
    if (const std::string* etag = head.find("x-linked-etag")) file.version = strong_etag(*etag);
    const std::string* size = head.find("x-linked-size");
    const auto bytes = size == nullptr ? std::nullopt : parse_length(*size);
    if (bytes) file.bytes = *bytes;
    // An empty head stands for a redirect that is already known.
    return head.fields.empty() || (bytes && !file.version.empty());
  }

 private:
  static Address read_endpoint() {
    const std::string named = environment_value("HF_ENDPOINT");
    auto address = parse_address(named.empty() ? "https://huggingface.co" : named);
    if (!address || address->target.find('?') != std::string::npos)
      throw Error(ErrorCode::kUsage, "HF_ENDPOINT is not an https or http URL");
    if (!address->target.ends_with('/')) address->target += '/';
    return *std::move(address);
  }
  Address at(const std::string& target) const {
    return {endpoint_.scheme, endpoint_.authority, endpoint_.target + target};
  }

  const Address endpoint_;
  const Secret token_;
};

}  // namespace

std::unique_ptr<Store> hub_store() {
  return std::make_unique<HubStore>();
}

}  // namespace fsdp::formats
