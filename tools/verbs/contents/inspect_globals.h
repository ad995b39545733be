// SPDX-License-Identifier: Apache-2.0
// `inspect --globals`: the names in the pickles of a checkpoint.
#pragma once

#include "tools/verbs/contents/inspect.h"

namespace fsdp::cli {

// Lists every name, also disallowed ones, or prints them as one JSON object, schema
// fsdp-ckpt/globals/1 (docs/verbs/inspect.md).  Returns 1 if a pickle could not be read to its end.
// Throws: kNotFound, kUnknownFormat, kIo.
int inspect_globals(const CommonOptions& common, const Streams& streams);

}  // namespace fsdp::cli
