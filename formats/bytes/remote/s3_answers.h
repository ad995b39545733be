// SPDX-License-Identifier: Apache-2.0
// Parses the answers of S3 and its clones.
// Source: the API reference of Amazon S3, the actions that are named.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/bytes/http/exchange.h"
#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// The <Error> of a refusal; members are empty where the answer lacks them, or is not XML.
struct S3Refusal {
  std::string code;     // NoSuchKey
  std::string message;  // for users
  std::string region;   // region of the bucket, if the server reports it
};
S3Refusal parse_s3_refusal(std::string_view document);

// One page of ListObjectsV2 with `prefix`.
struct S3Page {
  std::vector<StoredEntry> entries;
  std::string next;  // the token of the next page; empty: this is the last page
};
// `deep`: the list has no delimiter, so names are paths; else deeper keys are left out.
// Throws: kNetwork for a document that is not such a page.
S3Page parse_s3_page(std::string_view document, std::string_view prefix, bool deep = false);

class S3Dialect final : public Dialect {
 public:
  std::string words(const HttpAnswer& answer) const override;
  bool passes(const HttpAnswer& answer) const override;
};

// Returns the <UploadId> of CreateMultipartUpload.  Throws: kNetwork if there is none.
std::string parse_s3_upload_id(std::string_view document);
// Returns the body of CompleteMultipartUpload for the parts' ETags, from part 1 on.
std::string s3_completion(const std::vector<std::string>& etags);

// An upload that was begun, and neither completed nor aborted.
struct S3Begun {
  std::string key;
  std::string id;
  std::int64_t time_ns = 0;  // its beginning, since the epoch; 0: unknown
};
// Parses one page of the answer of ListMultipartUploads.
// Throws: kNetwork for a document that is not one.
std::vector<S3Begun> parse_s3_begun(std::string_view document);
// Returns the number of parts in an answer of ListParts.
// Throws: kNetwork for a document that is not one.
std::size_t parse_s3_part_count(std::string_view document);

}  // namespace fsdp::formats
