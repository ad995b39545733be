// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt consolidate: a sharded checkpoint becomes one full state dict.
#include "formats/families/runs/formats.h"
#include "tools/base/verbs.h"
#include "tools/verbs/writing/conversion.h"

namespace fsdp::cli {
namespace {

class ConsolidateVerb : public Verb {
 public:
  std::string name() const override { return "consolidate"; }
  std::string description() const override {
    return "Join a sharded checkpoint into one full state dict";
  }
  std::vector<std::string> examples() const override {
    return {"fsdp-ckpt consolidate step-400 full.pt",
            "fsdp-ckpt consolidate step-400 hf/ --max-shard-size 5GB -k 'model.**'"};
  }
  void declare(OptionSet& options) override {
    declare_conversion(options, conversion_, formats::output_words({formats::OutputGroup::kFull}));
    declare_resume(options, conversion_.writing);
  }
  bool divides() const override { return true; }
  int run(const CommonOptions& common, const Streams& streams) override {
    return convert_checkpoint(name(), conversion_, common, streams);
  }

 private:
  ConversionOptions conversion_;
};

}  // namespace

std::unique_ptr<Verb> make_consolidate() {
  return std::make_unique<ConsolidateVerb>();
}

}  // namespace fsdp::cli
