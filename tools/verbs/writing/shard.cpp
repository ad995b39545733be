// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt shard and reshard: a full checkpoint, or a DCP folder of M ranks, becomes a DCP folder
// of N ranks.
#include <utility>

#include "tools/base/verbs.h"
#include "tools/verbs/writing/resharding.h"

namespace fsdp::cli {
namespace {

class ShardVerb : public Verb {
 public:
  ShardVerb(std::string name, std::string description, std::vector<std::string> examples)
      : name_(std::move(name)),
        description_(std::move(description)),
        examples_(std::move(examples)) {}
  std::string name() const override { return name_; }
  std::string description() const override { return description_; }
  std::vector<std::string> examples() const override { return examples_; }
  void declare(OptionSet& options) override { declare_resharding(options, options_); }
  bool divides() const override { return true; }
  int run(const CommonOptions& common, const Streams& streams) override {
    return reshard_checkpoint(name_, options_, common, streams);
  }

 private:
  const std::string name_;
  const std::string description_;
  const std::vector<std::string> examples_;
  ReshardingOptions options_;
};

}  // namespace

std::unique_ptr<Verb> make_shard() {
  return std::make_unique<ShardVerb>(
      "shard", "Cut a full checkpoint into a DCP folder of N ranks, as FSDP saves it",
      std::vector<std::string>{
          "fsdp-ckpt shard full.pt step-0 --world-size 8",
          "fsdp-ckpt shard model.safetensors step-0 --world-size 64 --dry-run"});
}

std::unique_ptr<Verb> make_reshard() {
  return std::make_unique<ShardVerb>(
      "reshard", "Lay a DCP folder of M ranks out for N, as FSDP saves it",
      std::vector<std::string>{
          "fsdp-ckpt reshard step-400 step-400-on-6 --world-size 6",
          "fsdp-ckpt reshard step-400 out --world-size 4 --replicate 'model.**.table'"});
}

}  // namespace fsdp::cli
