// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt consolidate and convert: a sharded checkpoint becomes one full state dict, or any
// layout any other.
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/families/runs/formats.h"
#include "tools/base/verbs.h"
#include "tools/verbs/writing/averaging.h"
#include "tools/verbs/writing/conversion.h"

namespace fsdp::cli {
namespace {

class ConvertVerb : public Verb {
 public:
  // `sharded`: the formats include those that are laid out for ranks.
  ConvertVerb(std::string name, std::string description, std::vector<std::string> examples,
              std::vector<std::string> formats, bool sharded)
      : Verb(std::move(name), std::move(description), std::move(examples)),
        formats_(std::move(formats)),
        sharded_(sharded) {
    conversion_.carries = sharded;
  }
  void declare(OptionSet& options) override {
    declare_conversion(options, conversion_, formats_);
    declare_names_from(options, conversion_);
    declare_averages(options, average_);
    options.add("--resume", &conversion_.writing.resume);
    if (sharded_) declare_world_size(options, conversion_);
  }
  bool divides() const override { return true; }
  int run(const CommonOptions& common, const Streams& streams) override {
    if (!average_.names.empty() && !average_.asked)
      throw Error(ErrorCode::kUsage, "--names is for the averages that --ema takes");
    conversion_.whole_tensors = average_.asked;
    ContentChange change;
    if (average_.asked) {
      change = [this](const formats::Checkpoint& source, const formats::Value& content,
                      ReportExtras& extras) {
        return averaged_change(source, content, average_, extras);
      };
    }
    return convert_checkpoint(name(), conversion_, common, streams, change);
  }

 private:
  std::vector<std::string> formats_;
  bool sharded_;
  AverageRequest average_;
  ConversionOptions conversion_;
};

// Returns the words of all formats, those of folders that are only written again included.
std::vector<std::string> every_format() {
  std::vector<std::string> words = converted_formats();
  for (std::string& word : formats::output_words({formats::OutputGroup::kOwn}))
    words.push_back(std::move(word));
  return words;
}

}  // namespace

std::unique_ptr<Verb> make_consolidate() {
  return std::make_unique<ConvertVerb>(
      "consolidate", "Join shards into one state dict: same keys; from_pretrained needs export",
      std::vector<std::string>{
          "fsdp-ckpt consolidate step-400 full.pt",
          "fsdp-ckpt consolidate step-400 hf/ --max-shard-size 5GB -k 'model.**'"},
      formats::output_words({formats::OutputGroup::kFull}), false);
}

std::unique_ptr<Verb> make_convert() {
  return std::make_unique<ConvertVerb>(
      "convert", "Write another format or layout: of one file or of ranks, with the same keys",
      std::vector<std::string>{
          "fsdp-ckpt convert full.pt full.h5",
          "fsdp-ckpt convert model.safetensors step-0 --to dcp --world-size 8"},
      every_format(), true);
}

}  // namespace fsdp::cli
