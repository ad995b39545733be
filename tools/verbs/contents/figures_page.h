// SPDX-License-Identifier: Apache-2.0
// The page of an answer of `diff` or `stats`: its facts, and a table to search and sort.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "formats/bytes/base/json_writer.h"
#include "tools/base/common.h"
#include "tools/verbs/contents/page.h"

namespace fsdp::cli {

// An answer: what --json prints of it, and the number of its rows.
struct Figures {
  std::string title;
  std::uint64_t rows = 0;
  std::function<void(formats::JsonWriter& json)> write;
};

// The answer's ways out: the page that --html names, and JSON.
class FiguresOutput {
 public:
  // Begins the page if `html` is not empty; of a team, the leader does.  Throws: kExists without
  // `force`, and the rest of Page.
  FiguresOutput(const std::string& html, bool force, const CommonOptions& common);

  // Writes the page, if there is one, and prints JSON with --json.  Returns whether neither
  // was the case, so that a text for people is to follow.
  // Throws: kLimitEntries above 250,000 rows; what Page::write throws.
  bool print(const Figures& figures, const CommonOptions& common, const Streams& streams);

 private:
  std::string html_;
  std::unique_ptr<Page> page_;
};

}  // namespace fsdp::cli
