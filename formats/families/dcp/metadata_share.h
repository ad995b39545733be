// SPDX-License-Identifier: Apache-2.0
// Sends the metadata that one process has read to others, which then need not read and parse the
// file.
#pragma once

#include "formats/bytes/base/team.h"
#include "formats/families/dcp/metadata.h"

namespace fsdp::formats::dcp {

// Returns the leader's `metadata` on every member; that of the others is ignored.  The metadata is
// sent in portions: a member needs some ten MiB in addition, unless single names are longer.
// Throws: the errors of Team::exchange.
Metadata share_metadata(Team& team, Metadata metadata);

}  // namespace fsdp::formats::dcp
