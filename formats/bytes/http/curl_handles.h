// SPDX-License-Identifier: Apache-2.0
// Owners of libcurl's handles and lists.
#pragma once

#include <new>
#include <string>

#include "formats/bytes/http/curl_library.h"
#include "formats/bytes/http/http.h"

namespace fsdp::formats {

// A handle with its open connections.
struct Connection {
  const curl::Library* curl = nullptr;
  curl::Easy* easy = nullptr;
  curl::Multi* multi = nullptr;

  explicit Connection(const curl::Library& library)
      : curl(&library), easy(library.easy_init()), multi(library.multi_init()) {
    if (easy == nullptr || multi == nullptr) {
      close();
      throw std::bad_alloc();
    }
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { close(); }

  void close() {
    if (easy != nullptr) curl->easy_cleanup(easy);
    if (multi != nullptr) curl->multi_cleanup(multi);
  }
};

// The fields of a request as a list of libcurl.
class FieldList {
 public:
  // Throws: TransferError if a value has a line end; std::bad_alloc.
  FieldList(const curl::Library& library, const HttpRequest& request);
  FieldList(const FieldList&) = delete;
  FieldList& operator=(const FieldList&) = delete;
  ~FieldList() { curl_.slist_free_all(list_); }

  curl::List* get() const { return list_; }

 private:
  void add(const std::string& line);

  const curl::Library& curl_;
  curl::List* list_ = nullptr;
};

}  // namespace fsdp::formats
