// SPDX-License-Identifier: Apache-2.0
// The options every verb shares, and the surroundings it runs in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <set>
#include <string>

#include "formats/model/select.h"

namespace fsdp::cli {

enum class When { kAuto, kAlways, kNever };

struct CommonOptions {
  std::string path;
  bool json = false;
  bool quiet = false;
  When progress = When::kAuto;
  When color = When::kAuto;
  unsigned threads = 1;
  // --max-memory; where it is not given, what the files named justify (see memory_budget.h).
  std::uint64_t max_memory_bytes = 256U << 20U;
  formats::KeySelection keys;
  std::set<std::string> allowed_globals;
};

// Where a verb writes.  The members are what `When` came to for this terminal.
struct Streams {
  std::ostream& out;
  std::ostream& err;
  bool color = false;
  bool show_progress = false;
  // Width of the terminal that `out` is; 0 where it is a file or a pipe, which get everything.
  std::size_t columns = 0;
};

}  // namespace fsdp::cli
