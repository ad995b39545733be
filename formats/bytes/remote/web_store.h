// SPDX-License-Identifier: Apache-2.0
// Files of servers of https and http, which are only read.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "formats/bytes/http/exchange.h"
#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// https://host/path, and http.  A path may be encoded (%20) or not.  A query is refused: it may be
// a signature, and the URL stands in messages.  Nothing is listed or written.
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
  // Where a file is asked for.  Throws: kUsage.
  virtual Address home_of(const std::string& url) const;
  // Adds to a request what is for the host of `home_of` alone.
  virtual void introduce(HttpRequest& /*request*/) const {}
  // Takes from an answer of that host what it says of a file that is elsewhere.  Returns whether it
  // does, and the answers of other hosts then say nothing of its version.
  virtual bool describe_elsewhere(const HttpHead& /*head*/, StoredFile& /*file*/) const {
    return false;
  }

  HttpAnswer ask(Patience& patience, const std::string& method, const Address& home,
                 const std::function<void(HttpRequest&)>& add, HttpSink* sink,
                 const std::function<void(const HttpHead&)>& seen = nullptr,
                 const Address* start = nullptr) const;
  HttpClient& http() const { return http_; }

 private:
  std::optional<Address> known_place(const std::string& url) const;

  mutable HttpClient http_;
  mutable std::mutex mutex_;
  // Where requests for a URL were redirected to, so that later ones save the way.
  mutable std::map<std::string, Address> places_;
};

std::unique_ptr<Store> web_store();

}  // namespace fsdp::formats
