// SPDX-License-Identifier: Apache-2.0
// Parses what S3 and its clones answer about files that are sent in parts.
// Source: the API reference of Amazon S3, the actions that are named.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::formats {

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
