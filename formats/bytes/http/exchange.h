// SPDX-License-Identifier: Apache-2.0
// A request that is repeated until it is answered.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interface.h"
#include "formats/bytes/http/address.h"
#include "formats/bytes/http/http.h"
#include "formats/bytes/http/patience.h"

namespace fsdp::formats {

// How one kind of server words its refusals.
class Dialect : public Interface {
 public:
  // Returns the status and what the server says about it, safe to print: "503".
  virtual std::string words(const HttpAnswer& answer) const;
  // Returns whether the same request may get another answer a moment later.
  virtual bool passes(const HttpAnswer& answer) const;
};

// Returns whether a status says that there is no such file.
bool is_missing(int status);

// Returns the error for an answer that is not a success: kAccess, kNotFound, kChanged (412 and 416)
// or kNetwork.
Error refusal(const std::string& place, const HttpAnswer& answer, const Dialect& dialect);

using MakeRequest = std::function<HttpRequest()>;

// Calls `make` and sends its request, until an answer comes for which Dialect::passes is false.
// Throws: kNetwork if none comes within `patience`; kInterrupted; what `make` and the sink throw.
HttpAnswer exchange(HttpClient& client, Patience& patience, const Dialect& dialect,
                    const MakeRequest& make, HttpSink* sink = nullptr,
                    std::size_t max_text = std::size_t{1} << 20U);

// Returns where an answer of `from` redirects to; nullopt: it is not a redirect.  `hop`: the number
// of redirects that were followed.
// Throws: kNetwork for a redirect that must not be followed, or after 5.
std::optional<Address> next_address(const std::string& place, const Address& from,
                                    const HttpHead& head, int hop);

// Like exchange, and follows at most 5 redirects from `start` on.  `make` gets the address to ask
// and whether it has the scheme and host of `start`: credentials must not go to any other host.
// `seen`, if not null, gets the head of each answer that redirects.
// Throws also: kNetwork for a redirect that must not be followed.
HttpAnswer follow(HttpClient& client, Patience& patience, const Dialect& dialect,
                  const Address& start,
                  const std::function<HttpRequest(const Address&, bool at_home)>& make,
                  HttpSink* sink = nullptr,
                  const std::function<void(const HttpHead&)>& seen = nullptr,
                  std::size_t max_text = std::size_t{1} << 20U);

}  // namespace fsdp::formats
