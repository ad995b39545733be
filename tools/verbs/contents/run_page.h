// SPDX-License-Identifier: Apache-2.0
// The page of a run, or of several checkpoints: steps over time, sizes, what changed from one step
// to the next, and soundness where it was verified.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/families/runs/steps.h"
#include "formats/state/model/finding.h"
#include "tools/verbs/contents/inspect.h"
#include "tools/verbs/contents/page.h"

namespace fsdp::cli {

// The result of verifying one checkpoint.
struct Soundness {
  std::string verdict;  // "sound", "damaged", "unsafe", "unknown"; empty: it could not be verified
  std::string extent;   // what was compared with what, for people; or why it could not be verified
  formats::Findings findings;
  bool partial = false;  // some bytes were not read, or have no checksum
};

class RunPage {
 public:
  // Begins the file `options.html`.  `paths`: as the user named them; `steps`: the checkpoints
  // there. Throws: kSamePath if the page would lie inside one of the paths; what Page throws.
  RunPage(InspectOptions options, const std::vector<std::string>& paths,
          std::vector<formats::Step> steps);

  // Reads the metadata of every checkpoint, and values as `inspect` does, and writes the page.
  // `soundness`: by the path of the step; the page calls the others not verified.
  // Returns the error of each checkpoint that could not be opened; they are on the page, too.
  std::vector<Error> write(const std::map<std::string, Soundness>& soundness);

 private:
  InspectOptions options_;
  std::string name_;
  std::vector<formats::Step> steps_;  // the oldest first
  Page page_;
};

}  // namespace fsdp::cli
