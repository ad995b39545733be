// SPDX-License-Identifier: Apache-2.0
#include "tools/base/remedy.h"

#include <string_view>

#include "formats/bytes/base/text.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::escape;
using formats::quote;

constexpr std::size_t kMaxKey = 200;

}  // namespace

std::string remedy_text(const Hint& hint) {
  switch (hint.remedy) {
    case Remedy::kNone:
      return {};
    case Remedy::kReplace:
      return "; --force replaces it";
    case Remedy::kAllowGlobal:
      return cat("; --allow-global ", escape(hint.subject), " accepts it");
    case Remedy::kExclude:
      return cat("; leave it out with --exclude ", quote(hint.subject, kMaxKey));
    case Remedy::kChooseOne:
      return "; choose one with --keys";
    case Remedy::kDropValues:
      return "; --drop-values leaves them out, --keys chooses";
    case Remedy::kNameFormat:
      return ", or name the format with --to";
    case Remedy::kGiveNames:
      return "; give the names in the order of model.parameters() with --names FILE";
    case Remedy::kGiveModel:
      return "; give them with --names FILE or --model PATH";
    case Remedy::kDropOptimizer:
      return "; --drop-optimizer leaves it out";
    case Remedy::kRekeyToNames:
      return "; fsdp-ckpt rekey --key-by name gives parameters their names";
    case Remedy::kRekeyFirst:
      return "; give the names in the order of model.parameters() with --names FILE to rekey, and "
             "convert what that writes";
    case Remedy::kMoreMemory:
      return "; --max-memory SIZE allows more";
    case Remedy::kTakeOne:
      return "; --differing first (or last) takes the value of that checkpoint; --keys and "
             "--exclude select keys";
    case Remedy::kTakeOptimizer:
      return "; --optimizer takes them";
    case Remedy::kRetype:
      return "; --retype takes it";
    case Remedy::kStartAnew:
      return "; without --resume, its leftovers are removed";
    case Remedy::kTakeWhole:
      return "; fsdp-ckpt salvage PATH OUT takes what is whole";
    case Remedy::kTakeFrom:
      return "; fsdp-ckpt salvage PATH OUT --from OTHER takes what is not whole from another "
             "checkpoint";
    case Remedy::kEarlier:
      return "; fsdp-ckpt salvage PATH OUT makes it again from another step, fsdp-ckpt latest on "
             "the "
             "run's folder prints the newest sound checkpoint";
    case Remedy::kSeal:
      return "; fsdp-ckpt seal writes one";
    case Remedy::kResizeTables:
      return cat("; fsdp-ckpt resize-vocab --size ", escape(hint.subject), " gives them that many");
    case Remedy::kMovePrefix:
      return cat(
          "; select the names that have it with --keys, or remove it with fsdp-ckpt rename "
          "--rename ",
          escape(hint.subject));
    case Remedy::kModelConfig:
      return "; give the model's config.json with --config";
    case Remedy::kChooseModel:
      return "; --model chooses one";
    case Remedy::kGiveNumber:
      return cat("; give --set ", escape(hint.subject), "=NUMBER");
    case Remedy::kGiveNumberOrConfig:
      return cat("; give --set ", escape(hint.subject), "=NUMBER or the config with --config");
    case Remedy::kModelForOrder:
      return "; --model PATH beside --names has them";
    case Remedy::kOtherLayout:
      return "; --layout dcp writes a torch.distributed.checkpoint folder";
    case Remedy::kDownload:
      return cat("; ", escape(hint.subject), " downloads it");
    case Remedy::kLook:
      return cat("; ", escape(hint.subject), " shows it");
    case Remedy::kNamesFrom:
      return "; fsdp-ckpt consolidate PATH OUT --names-from MODEL takes them from a checkpoint of "
             "the model, or from a JSON object of names and shapes";
  }
  return {};
}

std::string message_of(const Error& error) {
  const std::string_view what = error.what();
  if (error.code() == ErrorCode::kRekeyUnused && what.find("; ") == what.npos)
    return cat(what, "; fsdp-ckpt inspect lists the keys");
  return cat(what, remedy_text(error.hint()));
}

std::string message_of(const formats::Finding& finding) {
  return finding.message + remedy_text(finding.hint);
}

}  // namespace fsdp::cli
