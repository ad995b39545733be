// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt reshard: a DCP folder of M ranks becomes one of N.
#include "tools/resharding.h"
#include "tools/verbs.h"

namespace fsdp::cli {
namespace {

class ReshardVerb : public Verb {
 public:
  std::string name() const override { return "reshard"; }
  std::string description() const override {
    return "Lay a DCP folder of M ranks out for N, as FSDP saves it";
  }
  std::vector<std::string> examples() const override {
    return {"fsdp-ckpt reshard step-400 step-400-on-6 --world-size 6",
            "fsdp-ckpt reshard step-400 out --world-size 4 --replicate 'model.**.table'"};
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

std::unique_ptr<Verb> make_reshard() {
  return std::make_unique<ReshardVerb>();
}

}  // namespace fsdp::cli
