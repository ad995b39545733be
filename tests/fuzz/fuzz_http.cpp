// SPDX-License-Identifier: Apache-2.0
// Any bytes read as the head of an answer of HTTP, each line also as the value of each field that
// is taken apart, as an address, and as where an address redirects to.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "formats/bytes/http/address.h"
#include "formats/bytes/http/encoding.h"
#include "formats/bytes/http/headers.h"
#include "formats/bytes/http/times.h"

namespace fsdp::formats {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// Nothing that would end a line of a request, or a part of it.
bool can_be_sent(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7F; });
}

void check_address(const Address& address) {
  require(address.scheme == "https" || address.scheme == "http");
  require(!address.authority.empty() && address.target.starts_with('/'));
  require(can_be_sent(address.text()) && address.authority.find('@') == std::string::npos);
  const auto again = parse_address(address.text());
  require(again && again->text() == address.text());
}

void check_value(std::string_view value) {
  const std::string etag = strong_etag(value);
  require(can_be_sent(etag) && etag.find('"') == std::string::npos);
  if (const auto range = parse_content_range(value)) {
    require(range->first <= range->last && (!range->total || range->last < *range->total));
  }
  if (const auto length = parse_length(value)) require(*length <= INT64_MAX);
  for (const auto& time : {parse_http_date(value), parse_iso_time(value)}) {
    require(!time || *time >= 0);
  }
}

void check_encoding(std::string_view text) {
  require(percent_decode(percent_encode(text), true) == text);
  require(percent_decode(encode_path(text), false) == text);
  const std::string complete = complete_path(text);
  require(complete_path(complete) == complete && percent_decode(complete, false).has_value());
  if (const auto decoded = percent_decode(text, false)) require(decoded->size() <= text.size());
}

void fuzz_http(std::string_view text) {
  HttpHead head;
  const Address home{"https", "a.org", "/b/c?d"};
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    add_head_line(head, line);
    check_value(line);
    check_encoding(line);
    if (const auto address = parse_address(line)) check_address(*address);
    if (const auto to = redirected(home, line)) {
      check_address(*to);
      require(to->scheme == "https");
    }
  }
  require(head.fields.size() <= 200 && (head.status == 0 || head.status / 1000 == 0));
  for (const auto& [name, value] : head.fields) {
    require(name.size() + value.size() <= std::size_t{16} << 10U);
    require(std::none_of(name.begin(), name.end(), [](char c) { return c >= 'A' && c <= 'Z'; }));
    check_value(value);
  }
  if (const auto file = file_of_head(head)) require(file->bytes <= INT64_MAX);
}

}  // namespace
}  // namespace fsdp::formats

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  fsdp::formats::fuzz_http({reinterpret_cast<const char*>(data), size});
  return 0;
}
