// SPDX-License-Identifier: Apache-2.0
// Files in buckets of S3 and of services with the S3 interface.
// Source: the API reference of Amazon S3.
#pragma once

#include <memory>

#include "formats/bytes/store/store.h"

namespace fsdp::formats {

// Returns the store for s3://bucket/key.  Endpoint, region, address style and credentials are those
// of the tools of AWS, and are looked up at first use.
// Throws: kUnsupported where libcurl cannot be loaded; kUsage for invalid settings.
std::unique_ptr<Store> amazon_store();
// Returns the store for gs://bucket/key, which uses the S3 interface of Google's storage.
std::unique_ptr<Store> google_store();

}  // namespace fsdp::formats
