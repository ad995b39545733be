// SPDX-License-Identifier: Apache-2.0
// Any bytes read as XML, and as each answer of S3: a refusal, a page of a list, the begin of an
// upload, those that were begun, the parts of one.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/http/xml.h"
#include "formats/bytes/remote/s3_answers.h"

namespace fsdp::formats {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// Wants begins and ends to match, and the limits to hold.
void parse_nested(std::string_view document) {
  std::vector<std::string> open;
  const auto begin = [&](std::string_view path) {
    open.emplace_back(path);
    require(open.size() <= 16 && path.size() <= std::size_t{16} * 257);
  };
  const auto end = [&](std::string_view path, const std::string& text) {
    require(!open.empty() && open.back() == path && text.size() <= std::size_t{64} << 10U);
    require(is_utf8(text));
    open.pop_back();
  };
  parse_xml(document, {begin, end});
  require(open.empty());
}

// What `read` throws is the error of a server that answers nonsense.
template <typename Read>
void refused_at_most(const Read& read) {
  try {
    read();
  } catch (const Error& e) {
    require(e.code() == ErrorCode::kNetwork);
  }
}

void fuzz_answers(std::string_view document) {
  refused_at_most([&] { parse_nested(document); });
  for (const std::string_view prefix : {"", "a/"}) {
    refused_at_most([&] {
      for (const StoredEntry& entry : parse_s3_page(document, prefix).entries) {
        require(!entry.name.empty() && entry.name.find('/') == std::string::npos);
        require(!entry.file || entry.file->bytes <= INT64_MAX);
      }
    });
  }
  refused_at_most([&] { require(!parse_s3_upload_id(document).empty()); });
  refused_at_most([&] { require(parse_s3_begun(document).size() <= document.size()); });
  refused_at_most([&] { require(parse_s3_part_count(document) <= document.size()); });
  HttpAnswer answer;
  answer.head.status = 400;
  answer.text = document;
  const S3Dialect dialect;
  const std::string words = dialect.words(answer);
  require(words.starts_with("400"));
  require(std::none_of(words.begin(), words.end(), [](char c) { return c == '\n' || c == 0x1B; }));
  dialect.passes(answer);
}

}  // namespace
}  // namespace fsdp::formats

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  fsdp::formats::fuzz_answers({reinterpret_cast<const char*>(data), size});
  return 0;
}
