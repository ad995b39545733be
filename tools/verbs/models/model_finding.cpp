// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/models/model_finding.h"

#include <algorithm>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/families/hf/companions.h"
#include "tools/base/remedy.h"
#include "tools/verbs/models/named_model.h"
#include "tools/verbs/writing/conversion.h"

namespace fsdp::cli {

ModelFinding find_in_model(const CommonOptions& common, const Streams& streams,
                           const std::string& config) {
  // verify reads the other checkpoints in the folder itself.
  CommonOptions quiet = common;
  quiet.quiet = true;
  formats::hf::Companions companions = formats::hf::open_companions(config);
  ModelRequest request;
  request.choice.config = companions.config_name;
  request.dry_run = true;
  ConversionOptions conversion;
  conversion.by_module = true;
  conversion.with_optimizer = false;
  conversion.strip_prefixes = {"auto"};
  conversion.strip_unasked = true;
  ModelFinding out;
  ReportExtras extras;
  const std::string place = formats::escape(common.path) + ": ";
  try {
    prepare_conversion("safetensors", conversion, quiet, streams,
                       [&](const formats::Checkpoint& source, const formats::Value& content,
                           ReportExtras& unused) {
                         NamedModel model =
                             named_model(source, content, common.path, companions, request, extras);
                         unused = {};
                         return std::move(model.result);
                       });
  } catch (const Error& error) {
    if (is_no_answer(error.code())) throw;
    std::string message = message_of(error);
    if (message.starts_with(place)) message.erase(0, place.size());
    // Removes the hint, which is for verbs that write.
    message.resize(std::min(message.find("; --"), message.size()));
    out.finding = {.code = error.code(),
                   .message = std::move(message),
                   .severity = formats::Finding::Severity::kDamage,
                   .hint = error.hint()};
  }
  out.lines = std::move(extras.lines);
  for (auto& [name, value] : extras.members) {
    if (name == "architecture") out.architecture = std::move(value);
  }
  return out;
}

}  // namespace fsdp::cli
