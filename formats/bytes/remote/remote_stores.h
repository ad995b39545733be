// SPDX-License-Identifier: Apache-2.0
// Registers the stores that are reached over a network.
#pragma once

namespace fsdp::formats {

// Makes s3://, gs://, hf://, https:// and http:// URLs usable as places of files.  libcurl is
// loaded when such a URL is first used.  Must be called once, before threads are started.
void register_remote_stores();

}  // namespace fsdp::formats
