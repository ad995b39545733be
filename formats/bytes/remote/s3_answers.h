// SPDX-License-Identifier: Apache-2.0
// What S3 and its clones answer.
// Source: the API reference of Amazon S3, the actions that are named.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/http/exchange.h"
#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// The <Error> of a refusal; empty members where there is none, or no XML at all.
struct S3Refusal {
  std::string code;     // NoSuchKey
  std::string message;  // for people
  std::string region;   // where the bucket is, if the server says so
};
S3Refusal parse_s3_refusal(std::string_view document);

// One page of ListObjectsV2 with `prefix`.
struct S3Page {
  std::vector<StoredEntry> entries;
  std::string next;  // the token of the next page; empty: this is the last one
};
// `deep`: without a delimiter, so that names are paths; else what is deeper is left out.
// Throws: kNetwork for a document that is no such page.
S3Page parse_s3_page(std::string_view document, std::string_view prefix, bool deep = false);

class S3Dialect final : public Dialect {
 public:
  std::string words(const HttpAnswer& answer) const override;
  bool passes(const HttpAnswer& answer) const override;
};

}  // namespace fsdp::formats
