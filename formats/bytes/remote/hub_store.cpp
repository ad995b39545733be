// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/hub_store.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/headers.h"
#include "formats/bytes/http/secret.h"
#include "formats/bytes/remote/hub_place.h"
#include "formats/bytes/remote/profile_files.h"
#include "formats/bytes/remote/web_store.h"
#include "formats/bytes/store/published.h"
#include "formats/bytes/store/small_file.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kMostMembers = 1'000'000;
constexpr std::size_t kMostTree = std::size_t{16} << 20U;
constexpr std::size_t kMostHubToken = 4096;
// The digits of what git names: SHA-1, or SHA-256 in repositories that were made so.
constexpr std::size_t kGitDigits = 40;
constexpr std::size_t kSha256Digits = 64;
// The hub names the contents of repositories by their SHA-256 or git's digest, those of buckets by
// their Xet hash.
constexpr std::string_view kLinkedEtagField = "x-linked-etag";
constexpr std::string_view kXetHashField = "x-xet-hash";

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

// Returns an unsigned number; nullopt: there is none.
std::optional<std::uint64_t> count_member(const Json& json, std::string_view name) {
  const Json* member = json.find(name);
  const std::int64_t* number = member == nullptr ? nullptr : member->as_int();
  if (number == nullptr || *number < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*number);
}

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

// Returns the digits in lower case if they are that many; else nothing.
std::string valid_digest(std::string_view digits, std::size_t count) {
  std::string text = lower_case(digits);
  return is_hex(text, count) ? text : std::string();
}

// Returns a file of the tree, all but its name; nullopt: it has no size.
std::optional<PublishedFile> published_file(const Json& member) {
  PublishedFile file;
  const Json* const large = member.find("lfs");
  const bool is_large = large != nullptr && !large->is_null();
  // The digest of git is then that of the pointer.
  const Json& content = is_large ? *large : member;
  const auto bytes = count_member(content, "size");
  if (!bytes) return std::nullopt;
  file.bytes = *bytes;
  file.kind = is_large ? DigestKind::kSha256 : DigestKind::kGitBlob;
  file.digest = valid_digest(text_member(content, "oid"), is_large ? kSha256Digits : kGitDigits);
  return file;
}

class HubStore final : public WebStore, public Publisher {
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
      if (describe_elsewhere(url, answer.head, file)) return file;
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
      const auto found = file_of_head(answer.head, version_field(url));
      return found ? found : WebStore::find(url);
    }
  }

  std::optional<std::vector<StoredEntry>> list(const std::string& url) const override {
    const HubPlace place = hub_place(url);
    Patience patience(escape(url));
    const std::string prefix = place.path.empty() ? std::string() : place.path + '/';
    std::vector<StoredEntry> entries;
    const bool found = each_member(
        patience, at(place.tree_target()), [&](const Json& member, const std::string& name) {
          if (!name.starts_with(prefix)) {
            // The list of a bucket has every name that begins like the folder's.
            if (place.is_bucket()) return;
            throw not_a_list(patience);
          }
          StoredEntry entry{name.substr(prefix.size()), std::nullopt};
          if (text_member(member, "type") == "file") {
            const auto bytes = count_member(member, "size");
            if (!bytes) throw not_a_list(patience);
            const Json* large = member.find("lfs");
            const std::string large_id =
                large == nullptr ? std::string() : text_member(*large, "oid");
            const char* const id = place.is_bucket() ? "xetHash" : "oid";
            entry.file =
                StoredFile{*bytes, large_id.empty() ? text_member(member, id) : large_id, 0};
          }
          entries.push_back(std::move(entry));
        });
    // The hub answers 404 for a missing folder as well as for a missing repository.
    return found ? std::move(entries) : std::vector<StoredEntry>();
  }

  PublishedFiles published(const std::string& url) const override {
    const HubPlace place = hub_place(url);
    Patience patience(escape(url));
    if (place.is_bucket()) {
      throw Error(ErrorCode::kUnsupported, patience.place(),
                  ": the hub has neither SHA-256 nor git's digest of files in buckets");
    }
    PublishedFiles out;
    out.revision = place.revision;
    out.commit = commit_of(place, patience);
    const std::string prefix = place.path.empty() ? std::string() : place.path + '/';
    const Address tree = at(place.tree_target(out.commit) + "?recursive=true");
    const bool found =
        each_member(patience, tree, [&](const Json& member, const std::string& name) {
          if (text_member(member, "type") != "file") return;
          auto file = published_file(member);
          if (!file || !name.starts_with(prefix)) throw not_a_list(patience);
          file->name = name.substr(prefix.size());
          out.files.push_back(*std::move(file));
        });
    if (!found) {
      throw Error(ErrorCode::kNotFound, patience.place(), ": commit ", out.commit,
                  " has no such folder");
    }
    std::ranges::sort(out.files, {}, &PublishedFile::name);
    const auto twice = std::ranges::adjacent_find(out.files, {}, &PublishedFile::name);
    if (twice != out.files.end()) throw not_a_list(patience);
    const std::string kind = place.kind.substr(0, place.kind.size() - 1);
    out.download = cat("hf download", kind == "model" ? "" : " --repo-type " + kind, " --revision ",
                       out.commit, " --force-download ", place.repo, ' ');
    out.prefix = prefix;
    return out;
  }

 protected:
  Address home_of(const std::string& url) const override {
    const HubPlace place = hub_place(url);
    if (place.path.empty()) {
      throw Error(ErrorCode::kUsage, escape(url), ": names a ",
                  place.is_bucket() ? "bucket" : "repository", ", but no file in it");
    }
    return at(place.file_target());
  }

  void introduce(HttpRequest& request) const override {
    const bool kept_secret = endpoint_.scheme == "https" || is_loopback(endpoint_.authority);
    if (!token_.empty() && kept_secret)
      request.fields.emplace_back("authorization", "Bearer " + token_.reveal());
  }

  bool describe_elsewhere(const std::string& url, const HttpHead& head,
                          StoredFile& file) const override {
    file.version =
        version_of_head(head, hub_place(url).is_bucket() ? kXetHashField : kLinkedEtagField);
    const std::string* size = head.find("x-linked-size");
    const auto bytes = size == nullptr ? std::nullopt : parse_length(*size);
    if (bytes) file.bytes = *bytes;
    // An empty head stands for a redirect that is already known.
    return head.fields.empty() || (bytes && !file.version.empty());
  }

  std::string_view version_field(const std::string& url) const override {
    return hub_place(url).is_bucket() ? kXetHashField : kEtagField;
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

  static Error not_a_list(const Patience& patience) {
    return {ErrorCode::kNetwork, patience.place(), ": the answer is not a list of files"};
  }

  // Asks the API, and follows redirects.
  HttpAnswer ask_api(Patience& patience, const Address& address) const {
    return follow(
        http(), patience, Dialect(), address,
        [&](const Address& where, bool at_home) {
          HttpRequest request;
          request.url = where.text();
          if (at_home) introduce(request);
          return request;
        },
        nullptr, nullptr, kMostTree);
  }

  // Returns the commit that the revision is now.  Throws: kNotFound, kNetwork, kAccess.
  std::string commit_of(const HubPlace& place, Patience& patience) const {
    const HttpAnswer answer = ask_api(patience, at(place.revision_target() + "?expand=sha"));
    if (answer.head.status == 404) {
      throw Error(ErrorCode::kNotFound, patience.place(),
                  ": the hub has no such repository or revision",
                  token_.empty() ? ", or hides it from those without HF_TOKEN" : "");
    }
    if (answer.head.status != 200) throw refusal(patience.place(), answer, Dialect());
    std::string commit;
    try {
      commit = lower_case(text_member(parse_json(answer.text), "sha"));
    } catch (const Error&) {
      commit.clear();
    }
    if (is_hex(commit, kGitDigits) || is_hex(commit, kSha256Digits)) return commit;
    throw Error(ErrorCode::kNetwork, patience.place(), ": the answer does not name a commit");
  }

  // Calls `take` with each member of a list and its path, page by page.  Returns false if there is
  // no such folder.  Throws: kLimitEntries, kNetwork, kAccess.
  bool each_member(Patience& patience, Address page,
                   const std::function<void(const Json&, const std::string& path)>& take) const {
    std::size_t count = 0;
    for (;;) {
      const HttpAnswer answer = ask_api(patience, page);
      if (answer.head.status == 404) return false;
      if (answer.head.status != 200) throw refusal(patience.place(), answer, Dialect());
      Json json;
      try {
        json = parse_json(answer.text);
      } catch (const Error&) {
        throw not_a_list(patience);
      }
      if (json.as_array() == nullptr) throw not_a_list(patience);
      for (const Json& member : *json.as_array()) {
        if (++count > kMostMembers) {
          throw Error(ErrorCode::kLimitEntries, patience.place(), ": has more than ", kMostMembers,
                      " members");
        }
        take(member, text_member(member, "path"));
      }
      const std::string next = next_page(answer.head);
      if (next.empty()) return true;
      // Pages without members could follow each other for ever.
      if (json.as_array()->empty()) throw not_a_list(patience);
      const auto address = redirected(page, next);
      if (!address || address->authority != page.authority || address->target == page.target)
        throw not_a_list(patience);
      page = *address;
    }
  }

  const Address endpoint_;
  const Secret token_;
};

}  // namespace

std::unique_ptr<Store> hub_store() {
  return std::make_unique<HubStore>();
}

}  // namespace fsdp::formats
