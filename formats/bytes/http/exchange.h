// SPDX-License-Identifier: Apache-2.0
// A request that is repeated until it is answered.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "formats/bytes/base/error.h"
#include "formats/bytes/http/address.h"
#include "formats/bytes/http/http.h"
#include "formats/bytes/http/patience.h"

namespace fsdp::formats {

// How one kind of server words its refusals.
class Dialect {
 public:
  Dialect() = default;
  Dialect(const Dialect&) = delete;
  Dialect& operator=(const Dialect&) = delete;
  virtual ~Dialect() = default;

  // "503", with what the server says of it, safe to print.
  virtual std::string words(const HttpAnswer& answer) const;
  // Whether the same request may be answered otherwise a moment later.
  virtual bool passes(const HttpAnswer& answer) const;
};

// Whether a status says that there is no such file.
bool is_missing(int status);

// The error of an answer that is no success: kAccess, kNotFound, kChanged (412 and 416) or
// kNetwork.
Error refusal(const std::string& place, const HttpAnswer& answer, const Dialect& dialect);

using MakeRequest = std::function<HttpRequest()>;

// Sends what `make` returns, which is called before each try, until an answer comes that is not a
// passing one.
// Throws: kNetwork if none comes in `patience`; kInterrupted; what `make` and the sink throw.
HttpAnswer exchange(HttpClient& client, Patience& patience, const Dialect& dialect,
                    const MakeRequest& make, HttpSink* sink = nullptr,
                    std::size_t max_text = std::size_t{1} << 20U);

// Where an answer of `from` redirects to.  nullopt: it is no redirect.  `hop`: how many were
// followed. Throws: kNetwork for one that may not be followed, or after 5.
std::optional<Address> next_address(const std::string& place, const Address& from,
                                    const HttpHead& head, int hop);

// As exchange, and follows at most 5 redirects from `start` on.  `make` gets the address to ask and
// whether it is still that host's: credentials are for no other one.  `seen`, if not null, gets the
// head of each answer that redirects.
// Throws also: kNetwork for a redirect that may not be followed.
HttpAnswer follow(HttpClient& client, Patience& patience, const Dialect& dialect,
                  const Address& start,
                  const std::function<HttpRequest(const Address&, bool at_home)>& make,
                  HttpSink* sink = nullptr,
                  const std::function<void(const HttpHead&)>& seen = nullptr,
                  std::size_t max_text = std::size_t{1} << 20U);

}  // namespace fsdp::formats
