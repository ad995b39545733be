// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt convert: any layout becomes any other.
#include "formats/state/model/shard_spec.h"
#include "tools/base/verbs.h"
#include "tools/verbs/writing/conversion.h"

namespace fsdp::cli {
namespace {

class ConvertVerb : public Verb {
 public:
  std::string name() const override { return "convert"; }
  std::string description() const override { return "Write a checkpoint in another format"; }
  std::vector<std::string> examples() const override {
    return {"fsdp-ckpt convert full.pt full.h5",
            "fsdp-ckpt convert model.safetensors step-0 --to dcp --world-size 8"};
  }
  void declare(OptionSet& options) override {
    declare_conversion(options, conversion_, converted_formats());
    declare_resume(options, conversion_.writing);
    options.integer("-w,--world-size", world_size_, 1, formats::kMaxWorldSize, "N",
                    "Sharded formats: number of ranks of the folder; 1 if not given");
  }
  bool divides() const override { return true; }
  int run(const CommonOptions& common, const Streams& streams) override {
    conversion_.world_size = world_size_.value_or(1);
    return convert_checkpoint(name(), conversion_, common, streams);
  }

 private:
  ConversionOptions conversion_;
  std::optional<std::int64_t> world_size_;
};

}  // namespace

std::unique_ptr<Verb> make_convert() {
  return std::make_unique<ConvertVerb>();
}

}  // namespace fsdp::cli
