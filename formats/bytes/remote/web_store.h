// SPDX-License-Identifier: Apache-2.0
// Reads files of https and http servers.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "formats/bytes/http/exchange.h"
#include "formats/bytes/http/headers.h"
#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// Reads https://host/path and http://host/path.  A path may be encoded (%20) or not.  A query is
// refused: it may be a signature, and messages show the URL.  Nothing is listed or written.
class WebStore : public Store {
 public:
  // Throws: kUnsupported where libcurl cannot be loaded.
  WebStore() = default;

  std::optional<StoredFile> find(const std::string& url) const override;
  std::optional<std::vector<StoredEntry>> list(const std::string& url) const override;
  void read(const std::string& url, const StoredFile& file, std::uint64_t offset,
            std::span<std::byte> out) const override;
  std::optional<Content> fetch(const std::string& url, std::uint64_t max_bytes) const override;

  std::unique_ptr<StoreUpload> upload(const std::string& url, std::uint64_t bytes) final;
  void put(const std::string& url, std::span<const std::byte> bytes, bool only_new) final;
  void remove(const std::string& url) final;

 protected:
  // Returns the address of the file's own host.  Throws: kUsage.
  virtual Address home_of(const std::string& url) const;
  // Adds to a request the fields that only the host of `home_of` may see.
  virtual void introduce(HttpRequest& /*request*/) const {}
  // Takes version and size of a file on another host from the redirect of its own host.  Returns
  // true if the head holds them; the version in other hosts' answers is then ignored.
  virtual bool describe_elsewhere(const std::string& /*url*/, const HttpHead& /*head*/,
                                  StoredFile& /*file*/) const {
    return false;
  }
  // Returns the field in which the file's own host tells its version.  Only an ETag is sent back
  // with a request.
  virtual std::string_view version_field(const std::string& /*url*/) const { return kEtagField; }

  HttpAnswer ask(Patience& patience, const std::string& method, const Address& home,
                 const std::function<void(HttpRequest&)>& add, HttpSink* sink,
                 const std::function<void(const HttpHead&)>& seen = nullptr,
                 const Address* start = nullptr) const;
  HttpClient& http() const { return http_; }

 private:
  std::optional<Address> known_place(const std::string& url) const;

  mutable HttpClient http_;
  mutable std::mutex mutex_;
  // The targets of redirects by URL, so that later requests skip the redirect.
  mutable std::map<std::string, Address> places_;
};

std::unique_ptr<Store> web_store();

}  // namespace fsdp::formats
