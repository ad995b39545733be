// SPDX-License-Identifier: Apache-2.0
// The options that every verb shares, and its environment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <set>
#include <string>

#include "formats/bytes/base/team.h"
#include "formats/bytes/journal/run_journal.h"
#include "formats/state/model/select.h"

namespace fsdp::cli {

enum class When { kAuto, kAlways, kNever };

struct CommonOptions {
  std::string path;
  bool json = false;
  bool quiet = false;
  When progress = When::kAuto;
  When color = When::kAuto;
  unsigned threads = 1;
  // --max-memory; if it is not given, the memory that the named files justify (see
  // memory_budget.h).
  std::uint64_t max_memory_bytes = 256U << 20U;
  formats::KeySelection keys;
  std::set<std::string> allowed_globals;
  // The processes that run this verb together; never null.
  formats::Team* team = &formats::this_process();
  // The facts that decide about the bytes of an output, as far as they are known; see
  // declare_resume.
  std::shared_ptr<formats::PlanIdentity> identity = std::make_shared<formats::PlanIdentity>();
};

// The output streams of a verb.  The flags are the results of `When` for this terminal.
struct Streams {
  std::ostream& out;
  std::ostream& err;
  bool color = false;
  bool show_progress = false;
  // Width of the terminal `out`; 0 if it is a file or a pipe, to which nothing is shortened.
  std::size_t columns = 0;
};

}  // namespace fsdp::cli
