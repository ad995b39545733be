// SPDX-License-Identifier: Apache-2.0
// Makes ranks fail together.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libfsdp/process_group.h"

namespace fsdp {

// Collective.  Runs `body` on every rank.  If any rank threw, every rank throws one c10::Error that
// names each failing rank and its message ("save step-400 failed on rank 2: ...: No space left on
// device"), so that no rank waits in a collective that the others never enter.  `what` is the same
// on every rank: a rank that waits takes another for another collective.  `body` must not run
// collectives of this group, unless it runs all of them before it throws.
void agree(const std::shared_ptr<ProcessGroup>& group, const std::string& what,
           const std::function<void()>& body);

// Collective.  As agree(), and returns what `body` returned on each rank, by rank.
std::vector<std::string> agree_and_tell(const std::shared_ptr<ProcessGroup>& group,
                                        const std::string& what,
                                        const std::function<std::string()>& body);

// Collective.  Compares lines of text, which should be the same on every rank.
// Throws: on every rank, one c10::Error naming the lowest rank that differs from rank 0, the first
// line that differs, and both texts (cut at 200 characters each).
void require_same(const std::shared_ptr<ProcessGroup>& group, const std::string& what,
                  const std::vector<std::string>& lines);

}  // namespace fsdp
