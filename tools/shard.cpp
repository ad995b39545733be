// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt shard: a full checkpoint becomes a DCP folder of N ranks.
#include "tools/resharding.h"
#include "tools/verbs.h"

namespace fsdp::cli {
namespace {

class ShardVerb : public Verb {
 public:
  std::string name() const override { return "shard"; }
  std::string description() const override {
    return "Cut a full checkpoint into a DCP folder of N ranks, as FSDP saves it";
  }
  std::vector<std::string> examples() const override {
    return {"fsdp-ckpt shard full.pt step-0 --world-size 8",
            "fsdp-ckpt shard model.safetensors step-0 --world-size 64 --dry-run"};
  }
  void declare(OptionSet& options) override { declare_resharding(options, options_); }
  bool divides() const override { return true; }
  int run(const CommonOptions& common, const Streams& streams) override {
    return reshard_checkpoint(name(), options_, common, streams);
  }

 private:
  ReshardingOptions options_;
};

}  // namespace

std::unique_ptr<Verb> make_shard() {
  return std::make_unique<ShardVerb>();
}

}  // namespace fsdp::cli
