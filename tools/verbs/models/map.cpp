// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt map: converts the tensors of one model's code to those of another's, by declared rules.

#include "formats/changes/map/mapping.h"
#include "formats/state/model/shard_spec.h"
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
  std::string name() const override { return "map"; }
  std::string description() const override {
    return "Convert tensors to those of another model's code: names, shapes and layouts by "
           "declared rules";
  }
  std::vector<std::string> examples() const override {
    return {"fsdp-ckpt map torchtitan-llama3-hf step-400 out --to safetensors --config config.json",
            "fsdp-ckpt map rules.toml model.pt new.pt --set n_heads=32 --reverse"};
  }
  void declare_first(OptionSet& options) override {
    options.positional("RULES", rules_, "A file of rules in TOML or JSON, or a built-in map", true);
  }
  void declare(OptionSet& options) override {
    declare_conversion(options, conversion_, converted_formats());
    declare_resume(options, conversion_.writing);
    options.integer("-w,--world-size", world_size_, 1, formats::kMaxWorldSize, "N",
                    "Sharded formats: number of ranks of the folder; 1 if not given");
    choice_.declare_parameters(options);
    options.text("--config", choice_.config, "FILE", "The model's config.json, for parameters");
    options.flag("--reverse", reverse_, "Apply the map in reverse: from its result to its source");
    options.flag("--drop-optimizer", drop_optimizer_, "Leave states of optimizers out");
  }

  bool divides() const override { return true; }
  int run(const CommonOptions& common, const Streams& streams) override {
    MapOptions options =
        choice_.options(rules_, reverse_ ? Direction::kReverse : Direction::kForward);
    options.drop_optimizer = drop_optimizer_;
    conversion_.world_size = world_size_.value_or(1);
    conversion_.by_module = true;
    const auto change = [&](const formats::Checkpoint& source, const formats::Value& content,
                            ReportExtras& extras) {
      formats::map::Mapped mapped = formats::map::map_content(source, content, options);
      add_map_report(mapped, options, conversion_.writing.dry_run, extras);
      return Changed{std::move(mapped.checkpoint), std::move(mapped.content)};
    };
    return convert_checkpoint(name(), conversion_, common, streams, change);
  }

 private:
  ConversionOptions conversion_;
  std::optional<std::int64_t> world_size_;
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
