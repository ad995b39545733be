// SPDX-License-Identifier: Apache-2.0
// Makes URLs of stores that are reached over a network known.
#pragma once

namespace fsdp::formats {

// From now on s3://, gs://, hf://, https:// and http:// are places of files.  Costs nothing until
// such a URL is used: libcurl is loaded then.  Called once, before threads are started.
void register_remote_stores();

}  // namespace fsdp::formats
