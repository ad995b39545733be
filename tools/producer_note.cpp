// SPDX-License-Identifier: Apache-2.0
#include "tools/producer_note.h"

#include "formats/base/text.h"
#include "formats/layout/producer_names.h"

namespace fsdp::cli {

void note_producers(const formats::Value& content, const std::string& format,
                    ReportExtras& extras) {
  if (format == "safetensors" || format == "hdf5") return;  // no file of PyTorch
  formats::Json::Array all;
  for (const auto& [producer, names] : formats::producer_names_in(content)) {
    std::string line = formats::cat("carries ", formats::escape(*names.begin()));
    if (names.size() > 1) line += formats::cat(" and ", names.size() - 1, " more");
    extras.lines.push_back(formats::cat(line, " (", producer,
                                        "): torch.load(weights_only=True) asks for ",
                                        names.size() > 1 ? "them" : "it"));
    for (const std::string& name : names) all.push_back(name);
  }
  if (!all.empty()) extras.members.emplace_back("asks_for", std::move(all));
}

}  // namespace fsdp::cli
