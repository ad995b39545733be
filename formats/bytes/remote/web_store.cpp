// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/web_store.h"

#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/encoding.h"
#include "formats/bytes/remote/range_read.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kMostPlaces = 100'000;

// Takes the head of an answer and none of its body.
class HeadOnly final : public HttpSink {
 public:
  void begin(const HttpHead& /*head*/) override {}
  bool take(std::span<const std::byte> /*bytes*/) override { return false; }
  void end() override {}
};

[[noreturn]] void refuse_writing(const std::string& url) {
  throw Error(ErrorCode::kUnsupported,
              escape(url) + ": cannot be written: URLs of this kind can only be read");
}

}  // namespace

Address WebStore::home_of(const std::string& url) const {
  const std::size_t query = url.find('?');
  if (query != std::string::npos) {
    throw Error(ErrorCode::kUsage, escape(url.substr(0, query)) +
                                       "?...: has a query, which may be a secret that messages "
                                       "would show; write a question mark in a name as %3F");
  }
  const std::size_t begin = url.find("://") + 3;
  const std::size_t slash = std::min(url.find('/', begin), url.size());
  auto address = parse_address(url.substr(0, slash));
  if (!address) {
    // The text before an @ may be a password.
    const std::size_t host = url.rfind('@', slash) == std::string::npos ? begin : slash;
    throw Error(ErrorCode::kUsage, escape(url.substr(0, begin)), host == slash ? "..." : "",
                escape(url.substr(host)), ": has no host, or has a user name or password");
  }
  address->target = slash == url.size() ? "/" : complete_path(url.substr(slash));
  return *std::move(address);
}

HttpAnswer WebStore::ask(Patience& patience, const std::string& method, const Address& home,
                         const std::function<void(HttpRequest&)>& add, HttpSink* sink,
                         const std::function<void(const HttpHead&)>& seen,
                         const Address* start) const {
  const Dialect dialect;
  return follow(
      http_, patience, dialect, start == nullptr ? home : *start,
      [&](const Address& address, bool /*at_start*/) {
        HttpRequest request;
        request.method = method;
        request.url = address.text();
        if (address.scheme == home.scheme && address.authority == home.authority)
          introduce(request);
        if (add) add(request);
        return request;
      },
      sink, seen);
}

std::optional<StoredFile> WebStore::find(const std::string& url) const {
  const Address home = home_of(url);
  Patience patience(escape(url));
  HttpAnswer answer = ask(patience, "HEAD", home, nullptr, nullptr);
  if (is_missing(answer.head.status)) return std::nullopt;
  const std::string_view field = version_field(url);
  auto file = answer.succeeded() ? file_of_head(answer.head, field) : std::nullopt;
  if (file) return file;
  // Some servers lack HEAD, or sign addresses for GET only.
  HeadOnly sink;
  answer = ask(
      patience, "GET", home,
      [](HttpRequest& request) { request.fields.emplace_back("range", "bytes=0-0"); }, &sink);
  if (is_missing(answer.head.status)) return std::nullopt;
  if (answer.head.status == 416) {
    const std::string* range = answer.head.find("content-range");
    if (range != nullptr && *range == "bytes */0") return StoredFile{};
  }
  if (!answer.succeeded()) throw refusal(patience.place(), answer, Dialect());
  file = file_of_head(answer.head, field);
  if (!file) {
    throw Error(ErrorCode::kUnsupported,
                patience.place() + ": the server does not report the file's size");
  }
  return file;
}

std::optional<std::vector<StoredEntry>> WebStore::list(const std::string& url) const {
  home_of(url);
  return std::nullopt;
}

std::optional<Address> WebStore::known_place(const std::string& url) const {
  const std::scoped_lock lock(mutex_);
  const auto at = places_.find(url);
  return at == places_.end() ? std::nullopt : std::optional(at->second);
}

void WebStore::read(const std::string& url, const StoredFile& file, std::uint64_t offset,
                    std::span<std::byte> out) const {
  if (out.empty()) return;
  const Address home = home_of(url);
  Patience patience(escape(url));
  RangeSink sink(patience, file, offset, out);
  const std::string_view field = version_field(url);
  sink.versions_in(field);
  bool elsewhere = false;  // the file's own host told its version
  const auto add = [&](HttpRequest& request) {
    request.fields.emplace_back("range", sink.range());
    if (!elsewhere && !file.version.empty() && field == kEtagField)
      request.fields.emplace_back("if-match", '"' + file.version + '"');
  };
  std::optional<Address> last;  // target of the latest redirect
  Address at = home;
  const auto seen = [&](const HttpHead& head) {
    StoredFile said;
    if (describe_elsewhere(url, head, said)) {
      elsewhere = true;
      sink.ignore_version();
      if (!file.version.empty() && said.version != file.version)
        throw changed_version(patience.place(), field, file.version, said.version);
    }
    at = *redirected(at, *head.find("location"));
    last = at;
  };
  if (const auto place = known_place(url)) {
    StoredFile said;
    elsewhere = describe_elsewhere(url, {}, said);
    if (elsewhere) sink.ignore_version();
    at = *place;
    const HttpAnswer answer = ask(patience, "GET", home, add, &sink, seen, &*place);
    if (answer.succeeded()) return;
    // The known address may have expired.
    const std::scoped_lock lock(mutex_);
    places_.erase(url);
    elsewhere = false;
    at = home;
    last.reset();
  }
  const HttpAnswer answer = ask(patience, "GET", home, add, &sink, seen);
  if (!answer.succeeded()) throw refusal(patience.place(), answer, Dialect());
  if (!last) return;
  const std::scoped_lock lock(mutex_);
  if (places_.size() < kMostPlaces) places_.insert_or_assign(url, *last);
}

std::optional<Store::Content> WebStore::fetch(const std::string& url,
                                              std::uint64_t max_bytes) const {
  Patience patience(escape(url));
  ContentSink sink(patience.place(), max_bytes);
  sink.versions_in(version_field(url));
  StoredFile said;
  bool elsewhere = false;
  const HttpAnswer answer = ask(
      patience, "GET", home_of(url), nullptr, &sink,
      [&](const HttpHead& head) { elsewhere = describe_elsewhere(url, head, said) || elsewhere; });
  if (is_missing(answer.head.status)) return std::nullopt;
  if (!answer.succeeded()) throw refusal(patience.place(), answer, Dialect());
  if (elsewhere) sink.content.file.version = said.version;
  return std::move(sink.content);
}

std::unique_ptr<StoreUpload> WebStore::upload(const std::string& url, std::uint64_t /*bytes*/) {
  refuse_writing(url);
}

void WebStore::put(const std::string& url, std::span<const std::byte> /*bytes*/,
                   bool /*only_new*/) {
  refuse_writing(url);
}

void WebStore::remove(const std::string& url) {
  refuse_writing(url);
}

std::unique_ptr<Store> web_store() {
  return std::make_unique<WebStore>();
}

}  // namespace fsdp::formats
