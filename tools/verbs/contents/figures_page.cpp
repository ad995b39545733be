// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/contents/figures_page.h"

#include <string_view>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "tools/base/reading.h"

namespace fsdp::cli {
namespace {

// A browser takes seconds for this many, more than a person looks at.
constexpr std::uint64_t kMostFigures = 250'000;

}  // namespace

FiguresOutput::FiguresOutput(const std::string& html, bool force, const CommonOptions& common)
    : html_(html) {
  if (!html.empty() && common.team->leads()) page_ = std::make_unique<Page>(html, force);
}

bool FiguresOutput::print(const Figures& figures, const CommonOptions& common,
                          const Streams& streams) {
  if (page_ && figures.rows > kMostFigures) {
    throw Error(ErrorCode::kLimitEntries,
                formats::cat(figures.title, ": ", formats::group_digits(figures.rows),
                             " rows, but a page shows at most ",
                             formats::group_digits(kMostFigures), "; select some with --keys"));
  }
  if (page_) {
    page_->write(kFiguresPage, figures.title, [&](formats::JsonWriter& json) {
      json.begin_object().member("tool", FSDP_VERSION).key("answer");
      figures.write(json);
      json.end_object();
    });
  }
  if (common.json) {
    formats::JsonWriter json([&](std::string_view text) { streams.out << text; });
    figures.write(json);
  } else if (!html_.empty() && !common.quiet) {
    streams.out << formats::escape(html_) << ": a page of " << counted(figures.rows, "row") << '\n';
  }
  return html_.empty() && !common.json;
}

}  // namespace fsdp::cli
