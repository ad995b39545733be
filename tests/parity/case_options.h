// SPDX-License-Identifier: Apache-2.0
// The sharding options of a case.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "libfsdp/fully_shard.h"
#include "libfsdp/options.h"
#include "libfsdp/process_group.h"
#include "tests/parity/reference.h"

namespace fsdp::test {

// Returns the options of a case that do not depend on its module.  Collective if a hybrid strategy
// splits the ranks.
FsdpOptions case_options(const ParityCase& wanted, const std::shared_ptr<ProcessGroup>& group);

// Returns the words of ParityCase::own, by module.
std::map<std::string, std::string> own_words(const ParityCase& wanted);
// Returns the options of one module with these words: `options` as fully_shard() names them.
FullyShardOptions composed_options(const ParityCase& wanted, const std::string& words,
                                   const FsdpOptions& options);

}  // namespace fsdp::test
