// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt inspect: shows the contents of a checkpoint; its options and parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/families/runs/steps.h"
#include "formats/state/checkpoint/checkpoint.h"
#include "tools/base/common.h"

namespace fsdp::cli {

struct InspectOptions {
  CommonOptions common;
  std::size_t depth = SIZE_MAX;            // levels of the tree to show
  bool fold = false;                       // show equal numbered layers once
  bool no_fold = false;                    // do not fold on a terminal either
  bool chunks = false;                     // show each chunk: box, file, bytes
  bool files = false;                      // show each file: bytes, rank
  When values = When::kAuto;               // read values (kAuto: if there are few)
  std::string html;                        // file of the page; empty: none
  bool force = false;                      // replace an existing file
  std::optional<std::uint64_t> max_bytes;  // limit on the bytes of all files; status 1 above it
};

// The name shown if the object itself is one tensor or value, and has no key.
inline constexpr std::string_view kRootName = "(root)";
// Returns a key for users.
std::string shown_key(const std::string& key, const formats::KeyPath& path);

// Reads a value; an error says how to go on without it.
formats::Value read_value(const formats::Checkpoint& checkpoint, const formats::ValueEntry& entry);

// Returns whether `options` request the values of this checkpoint.
bool reads_values(const InspectOptions& options, const formats::Checkpoint& checkpoint);

// Prints the content as one JSON object, schema fsdp-ckpt/inspect/1 (docs/verbs/inspect.md).
void print_inspect_json(const InspectOptions& options, const formats::Checkpoint& checkpoint,
                        std::ostream& out);

// Writes one page without external resources to `options.html`: a treemap of bytes by module, which
// rank or file holds what, a table to search and sort.  The file appears as a whole or not at all.
// Throws: kExists and the rest of AtomicFile; kLimitEntries above 250,000 tensors.
void write_inspect_page(const InspectOptions& options, const formats::Checkpoint& checkpoint);

// Lists the checkpoints of a run, one line each, with step, size, tensors and format, or writes a
// page of them (run_page.h); reads only metadata.  `paths`: as the user named them.  A checkpoint
// that cannot be opened gets an error on its line; the others are still listed.
// Returns 0; 2 if a checkpoint could not be opened.
int inspect_run(const InspectOptions& options, const std::vector<std::string>& paths,
                const std::vector<formats::Step>& steps, const Streams& streams);

// Lists every name in the pickles, also disallowed ones, or prints them as one JSON object, schema
// fsdp-ckpt/globals/1 (docs/verbs/inspect.md).  Returns 1 if a pickle could not be read to its end.
// Throws: kNotFound, kUnknownFormat, kIo.
int inspect_globals(const CommonOptions& common, const Streams& streams);

}  // namespace fsdp::cli
