// SPDX-License-Identifier: Apache-2.0
// What S3 and its clones answer about files that are sent by parts.
// Source: the API reference of Amazon S3, the actions that are named.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::formats {

// The <UploadId> of CreateMultipartUpload.  Throws: kNetwork if there is none.
std::string parse_s3_upload_id(std::string_view document);
// The body of CompleteMultipartUpload with the parts' ETags, in their order from part 1 on.
std::string s3_completion(const std::vector<std::string>& etags);

// An upload that was begun, and neither completed nor aborted.
struct S3Begun {
  std::string key;
  std::string id;
  std::int64_t time_ns = 0;  // of its beginning, since the epoch; 0: not known
};
// The answer of ListMultipartUploads, one page of it.
// Throws: kNetwork for a document that is not one.
std::vector<S3Begun> parse_s3_begun(std::string_view document);
// The number of parts that an answer of ListParts has.
// Throws: kNetwork for a document that is not one.
std::size_t parse_s3_part_count(std::string_view document);

}  // namespace fsdp::formats
