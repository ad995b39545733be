// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt map: converts the tensors of one model's code to those of another's, by declared rules.

#include "formats/changes/map/mapping.h"
#include "tools/base/verbs.h"
#include "tools/verbs/models/map_choice.h"
#include "tools/verbs/models/map_report.h"
#include "tools/verbs/writing/conversion.h"

namespace fsdp::cli {
namespace {

using formats::map::Direction;
using formats::map::MapOptions;

class MapVerb : public Verb {
 public:
  MapVerb()
      : Verb("map", "Apply rules to names and shapes: tensors of one model's code become another's",
             {"fsdp-ckpt map torchtitan-llama3-hf step-400 out --to safetensors --config "
              "config.json",
              "fsdp-ckpt map rules.toml model.pt new.pt --set n_heads=32 --reverse"}) {}
  void declare_first(OptionSet& options) override {
    options.positional("RULES", rules_, "A file of rules in TOML or JSON, or a built-in map");
  }
  void declare(OptionSet& options) override {
    declare_conversion(options, conversion_, converted_formats());
    options.add("--resume", &conversion_.writing.resume);
    declare_world_size(options, conversion_);
    options.add("--set", &choice_.parameters);
    options.add("--config", &choice_.config, ", for parameters");
    options.add("--reverse", &reverse_);
    options.add("--drop-optimizer", &drop_optimizer_);
  }

  bool divides() const override { return true; }
  int run(const CommonOptions& common, const Streams& streams) override {
    MapOptions options =
        choice_.options(rules_, reverse_ ? Direction::kReverse : Direction::kForward);
    options.drop_optimizer = drop_optimizer_;
    conversion_.by_module = true;
    conversion_.with_optimizer = !drop_optimizer_;
    const auto change = [&](const formats::Checkpoint& source, const formats::Value& content,
                            ReportExtras& extras) {
      formats::map::Mapped mapped = formats::map::map_content(source, content, options);
      add_map_report(mapped, options, conversion_.writing.dry_run, extras);
      return Changed{std::move(mapped.checkpoint), std::move(mapped.content),
                     options.rules.layers_apart};
    };
    return convert_checkpoint(name(), conversion_, common, streams, change);
  }

 private:
  ConversionOptions conversion_;
  std::string rules_;
  MapChoice choice_;
  bool reverse_ = false;
  bool drop_optimizer_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_map() {
  return std::make_unique<MapVerb>();
}

}  // namespace fsdp::cli
