// SPDX-License-Identifier: Apache-2.0
// Gives the metadata that one process has read to others, which need neither its file nor the time
// to parse it.
#pragma once

#include "formats/bytes/base/team.h"
#include "formats/families/dcp/metadata.h"

namespace fsdp::formats::dcp {

// Returns on every member what the leader gives as `metadata`; that of the others is not used.  It
// is sent in portions: beside it a member needs some ten MiB, unless single names are longer.
// Throws: like Team::exchange.
Metadata share_metadata(Team& team, Metadata metadata);

}  // namespace fsdp::formats::dcp
