// SPDX-License-Identifier: Apache-2.0
// Files in buckets of S3, and of what speaks as S3 does.
// Source: the API reference of Amazon S3.
#pragma once

#include <memory>

#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// s3://bucket/key.  Endpoint, region, style of addresses and credentials are those of the tools of
// AWS; they are looked for when they are first needed.
// Throws: kUnsupported where libcurl cannot be loaded; kUsage for settings that make no sense.
std::unique_ptr<Store> amazon_store();
// gs://bucket/key, by the interface of Google's storage that speaks as S3 does.
std::unique_ptr<Store> google_store();

}  // namespace fsdp::formats
