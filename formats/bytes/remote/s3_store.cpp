// SPDX-License-Identifier: Apache-2.0
#include "formats/bytes/remote/s3_store.h"

#include <cstdint>
#include <iterator>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/remote/lost_answers.h"
#include "formats/bytes/remote/range_read.h"
#include "formats/bytes/remote/s3_client.h"
#include "formats/bytes/remote/s3_upload.h"
#include "formats/bytes/store/deep_listing.h"

namespace fsdp::formats {
namespace {

constexpr std::size_t kMostEntries = 1'000'000;
// A thousand keys of 1024 bytes, each byte encoded in three, and the XML around them.
constexpr std::size_t kMostPage = std::size_t{16} << 20U;

class S3Store final : public Store, public DeepListing {
 public:
  S3Store(S3Settings settings, std::function<Credentials(HttpClient&)> find)
      : client_(std::move(settings), std::move(find)) {}

  std::optional<StoredFile> find(const std::string& url) const override {
    const S3Place place = s3_place(url);
    if (place.key.empty()) return std::nullopt;
    Patience patience(escape(url));
    const HttpAnswer answer = client_.send(patience, {"HEAD", place});
    if (is_missing(answer.head.status)) return std::nullopt;
    if (!answer.succeeded()) throw refused(patience, answer);
    auto file = file_of_head(answer.head);
    if (!file)
      throw Error(ErrorCode::kNetwork,
                  patience.place() + ": the server does not report the file's size");
    return file;
  }

  std::optional<std::vector<StoredEntry>> list(const std::string& url) const override {
    std::vector<StoredEntry> entries;
    list_pages(url, false, SIZE_MAX, entries);
    return entries;
  }

  Below list_below(const std::string& url, std::size_t answers) const override {
    Below below;
    below.whole = list_pages(url, true, answers, below.files);
    return below;
  }

  void read(const std::string& url, const StoredFile& file, std::uint64_t offset,
            std::span<std::byte> out) const override {
    if (out.empty()) return;
    Patience patience(escape(url));
    RangeSink sink(patience, file, offset, out);
    const HttpAnswer answer =
        client_.send(patience, {"GET", s3_place(url)}, &sink, 0, [&](S3Request& request) {
          request.fields = {{"range", sink.range()}};
          if (!file.version.empty())
            request.fields.emplace_back("if-match", '"' + file.version + '"');
        });
    if (!answer.succeeded()) throw refused(patience, answer);
  }

  std::optional<Content> fetch(const std::string& url, std::uint64_t max_bytes) const override {
    const S3Place place = s3_place(url);
    if (place.key.empty()) return std::nullopt;
    Patience patience(escape(url));
    ContentSink sink(patience.place(), max_bytes);
    const HttpAnswer answer = client_.send(patience, {"GET", place}, &sink);
    if (is_missing(answer.head.status)) return std::nullopt;
    if (!answer.succeeded()) throw refused(patience, answer);
    return std::move(sink.content);
  }

  std::unique_ptr<StoreUpload> upload(const std::string& url, std::uint64_t bytes) override {
    return std::make_unique<S3Upload>(client_, file_url(url), bytes);
  }
  void put(const std::string& url, std::span<const std::byte> bytes, bool only_new) override {
    put_s3_file(client_, file_url(url), bytes, only_new);
  }
  void remove(const std::string& url) override {
    Patience patience(escape(url));
    S3Request request{"DELETE", s3_place(file_url(url))};
    request.though_interrupted = true;
    for (;;) {
      const HttpAnswer answer = client_.send(patience, request);
      if (answer.succeeded()) return;
      if (!is_missing(answer.head.status)) throw refused(patience, answer);
      // S3 never answers so for a file; other servers do if the file is gone already.
      if (!is_listed(client_, patience, request.place)) return;
      patience.wait("the server lists the file, but answers its removal with " +
                    client_.dialect().words(answer));
    }
  }

 private:
  static const std::string& file_url(const std::string& url) {
    if (s3_place(url).key.empty())
      throw Error(ErrorCode::kUsage, escape(url) + ": names a bucket, but no file in it");
    return url;
  }
  // Returns whether the list is complete.
  bool list_pages(const std::string& url, bool deep, std::size_t most,
                  std::vector<StoredEntry>& entries) const {
    const S3Place folder = s3_place(url);
    const std::string prefix = folder.key.empty() ? std::string() : folder.key + '/';
    std::string token;
    for (std::size_t pages = 0; pages < most; ++pages) {
      S3Request request{"GET",
                        {folder.bucket, {}},
                        {{"list-type", "2"}, {"encoding-type", "url"}, {"prefix", prefix}}};
      if (!deep) request.query.emplace_back("delimiter", "/");
      if (!token.empty()) request.query.emplace_back("continuation-token", token);
      Patience patience(escape(url));
      const HttpAnswer answer = client_.send(patience, std::move(request), nullptr, kMostPage);
      if (answer.head.status == 404) {
        throw Error(ErrorCode::kNotFound, patience.place(),
                    ": no such bucket: ", client_.dialect().words(answer));
      }
      if (!answer.succeeded()) throw refused(patience, answer);
      S3Page page;
      try {
        page = parse_s3_page(answer.text, prefix, deep);
      } catch (const Error& error) {
        throw error.in(patience.place());
      }
      if (page.entries.size() > kMostEntries - entries.size()) {
        throw Error(ErrorCode::kLimitEntries, patience.place(), ": has more than ", kMostEntries,
                    " members");
      }
      entries.insert(entries.end(), std::make_move_iterator(page.entries.begin()),
                     std::make_move_iterator(page.entries.end()));
      if (page.next.empty()) return true;
      if (page.next == token)
        throw Error(ErrorCode::kNetwork, patience.place() + ": the list never ends");
      token = std::move(page.next);
    }
    return false;
  }

  Error refused(const Patience& patience, const HttpAnswer& answer) const {
    return refusal(patience.place(), answer, client_.dialect());
  }

  mutable S3Client client_;
};

}  // namespace

std::unique_ptr<Store> amazon_store() {
  Profile profile = chosen_profile();
  S3Settings settings = amazon_settings(profile);
  return std::make_unique<S3Store>(std::move(settings),
                                   [profile = std::move(profile)](HttpClient& client) {
                                     return amazon_credentials(client, profile);
                                   });
}

std::unique_ptr<Store> google_store() {
  return std::make_unique<S3Store>(google_settings(),
                                   [](HttpClient&) { return google_credentials(); });
}

}  // namespace fsdp::formats
