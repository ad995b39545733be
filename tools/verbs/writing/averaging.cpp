// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/writing/averaging.h"

#include <optional>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/edit/averaged_weights.h"
#include "tools/base/reading.h"
#include "tools/verbs/writing/given_names.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Json;

constexpr std::size_t kMostNames = 3;

std::string place_text(const std::string& key) {
  return key.empty() ? "the top level" : formats::quote(key, 200);
}

}  // namespace

void declare_averages(OptionSet& options, AverageRequest& request) {
  options.add("--ema", &request.asked);
  options.add("--names", &request.names, "; for averages that have none");
}

Changed averaged_change(const formats::Checkpoint& source, const formats::Value& content,
                        const AverageRequest& request, ReportExtras& extras) {
  std::optional<formats::ParameterOrder> given;
  if (!request.names.empty()) given = read_names(request.names);
  formats::AveragedWeights found = formats::averaged_weights(source, content, given);
  if (given && found.order.empty()) throw names_are_stored(source, found.place);
  extras.lines.push_back(cat("averages: ", place_text(found.place), ", ", found.what, ", for ",
                             counted(found.taken, "parameter"), " of ", place_text(found.model)));
  if (found.computed != 0) {
    extras.lines.push_back(
        cat("computed: ", found.computed,
            " of them, in float64 and rounded once; the library rounds each step "
            "to the type of the weights"));
  }
  if (found.listed) {
    extras.lines.push_back(cat("assumed: the list has no names, and its order is that of ",
                               found.order, "; numbers and shapes agree"));
  } else if (!found.order.empty()) {
    extras.lines.push_back(cat("names: of ids, by the order of ", found.order, "; shapes agree"));
  }
  note_kept_buffers(found.kept, extras);
  Json::Array kept;
  for (const std::string& name : found.kept) kept.emplace_back(name);
  extras.members.emplace_back(
      "averages", Json::Object{{"place", found.place},
                               {"what", found.what},
                               {"model", found.model},
                               {"parameters", found.taken},
                               {"computed", found.computed},
                               {"order", found.order.empty() ? Json(nullptr) : Json(found.order)},
                               {"assumed", found.listed},
                               {"kept", std::move(kept)}});
  return {std::move(found.checkpoint), std::move(found.content)};
}

Error names_are_stored(const formats::Checkpoint& source, const std::string& place) {
  return {ErrorCode::kUsage, cat(source.description().path, ": ", place_text(place),
                                 ": these averages have names, which --names would give")};
}

void note_kept_buffers(const std::vector<std::string>& kept, ReportExtras& extras) {
  if (kept.empty()) return;
  formats::SomeNames names(kMostNames);
  for (const std::string& name : kept) names.add(formats::quote(name, 200));
  extras.lines.push_back(cat("kept: ", counted(kept.size(), "tensor"),
                             ", which averages have none of: ", names.text()));
}

}  // namespace fsdp::cli
