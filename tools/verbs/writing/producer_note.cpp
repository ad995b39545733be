// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/writing/producer_note.h"

#include "formats/bytes/base/text.h"
#include "formats/containers/names/producer_names.h"
#include "tools/base/reading.h"

namespace fsdp::cli {

void add_producers(const formats::Value& value, ProducerNames& names) {
  for (const auto& [producer, found] : formats::producer_names_in(value))
    names[producer].insert(found.begin(), found.end());
}

void note_producers(const ProducerNames& by_producer, ReportExtras& extras) {
  formats::Json::Array all;
  for (const auto& [producer, names] : by_producer) {
    std::string line = formats::cat("carries ", formats::escape(*names.begin()));
    if (names.size() > 1) line += formats::cat(" and ", names.size() - 1, " more");
    extras.lines.push_back(formats::cat(line, " (", producer,
                                        "): torch.load(weights_only=True) asks for ",
                                        names.size() > 1 ? "them" : "it"));
    for (const std::string& name : names) all.push_back(name);
  }
  if (!all.empty()) extras.members.emplace_back("asks_for", std::move(all));
}

void note_producers(const formats::Value& content, const std::string& format,
                    ReportExtras& extras) {
  if (format == "safetensors" || format == "hdf5") return;  // not a file of PyTorch
  note_producers(formats::producer_names_in(content), extras);
}

void note_computed(const formats::CopyCheck& check, ReportExtras& extras) {
  formats::Json::Object all;
  for (const auto& [cls, count] : check.computed) {
    extras.lines.push_back(formats::cat("dequantized, as PyTorch reads them from a folder: ",
                                        counted(count, "tensor"), " of ", formats::escape(cls)));
    all.emplace_back(cls, count);
  }
  if (!all.empty()) extras.members.emplace_back("dequantized", std::move(all));
}

}  // namespace fsdp::cli
