// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt map: tensors of one model's code become those of another's, by declared rules.
#include <algorithm>
#include <filesystem>

#include "formats/base/error.h"
#include "formats/base/json.h"
#include "formats/base/text.h"
#include "formats/map/builtin.h"
#include "formats/map/mapping.h"
#include "formats/model/shard_spec.h"
#include "tools/conversion.h"
#include "tools/map_report.h"
#include "tools/rewriting.h"
#include "tools/verbs.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::map::Direction;
using formats::map::MapOptions;

// Returns the text of a rule file, or of the built-in map of that name.
std::string rules_text(const std::string& word) {
  std::error_code ignored;
  if (std::filesystem::exists(word, ignored)) return read_text_file(word);
  std::vector<std::string> names;
  for (const auto& map : formats::map::builtin_maps()) {
    if (map.name == word) return std::string(map.text);
    names.emplace_back(map.name);
  }
  const std::string near = formats::nearest(word, names);
  throw Error(ErrorCode::kNotFound,
              cat(formats::escape(word), ": is neither a file nor a built-in map",
                  near.empty() ? "; fsdp-ckpt maps lists those" : "; did you mean " + near + "?"));
}

class MapVerb : public Verb {
 public:
  std::string name() const override { return "map"; }
  std::string description() const override {
    return "Make the tensors of another model's code: names, shapes and layouts by declared rules";
  }
  std::vector<std::string> examples() const override {
    return {"fsdp-ckpt map torchtitan-llama3-hf step-400 out --to safetensors --config config.json",
            "fsdp-ckpt map rules.toml model.pt new.pt --set n_heads=32 --reverse"};
  }
  void declare_first(OptionSet& options) override {
    options.positional("RULES", rules_, "A file of rules in TOML or JSON, or a built-in map", true);
  }
  void declare(OptionSet& options) override {
    declare_conversion(
        options, conversion_,
        {"pt", "safetensors", "hdf5", "dcp", "lightning", "lightning-ckpt", "accelerate"});
    options.integer("-w,--world-size", world_size_, 1, formats::kMaxWorldSize, "N",
                    "Sharded formats: ranks to lay the folder out for; 1 if not given");
    options.list("--set", set_, "NAME=NUMBER", "The value of a parameter of the map");
    options.text("--config", config_, "FILE", "The model's config.json, for parameters");
    options.flag("--reverse", reverse_, "Go back: from what the map makes to what it takes");
    options.flag("--drop-optimizer", drop_optimizer_, "Leave states of optimizers out");
  }

  int run(const CommonOptions& common, const Streams& streams) override {
    const MapOptions options = map_options();
    conversion_.world_size = world_size_.value_or(1);
    const auto change = [&](const formats::Checkpoint& source, const formats::Value& content,
                            ReportExtras& extras) {
      formats::map::Mapped mapped = formats::map::map_content(source, content, options);
      add_map_report(mapped, options, conversion_.writing.dry_run, extras);
      return Changed{std::move(mapped.checkpoint), std::move(mapped.content)};
    };
    return convert_checkpoint(name(), conversion_, common, streams, change);
  }

 private:
  MapOptions map_options() const {
    MapOptions options;
    options.rules = formats::map::parse_rules(rules_text(rules_), formats::escape(rules_),
                                              reverse_ ? Direction::kReverse : Direction::kForward);
    options.drop_optimizer = drop_optimizer_;
    for (const std::string& word : set_) {
      const auto [name, value] = formats::map::parse_parameter(word);
      if (!options.given.values.emplace(name, value).second)
        throw Error(ErrorCode::kUsage, cat("--set gives ", formats::quote(name), " twice"));
    }
    if (!config_.empty()) {
      options.given.config_name = formats::escape(config_);
      try {
        options.given.config = formats::parse_json(read_text_file(config_));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kJson && error.code() != ErrorCode::kJsonDepth) throw;
        throw error.in(options.given.config_name);
      }
    }
    return options;
  }

  ConversionOptions conversion_;
  std::optional<std::int64_t> world_size_;
  std::string rules_;
  std::vector<std::string> set_;
  std::string config_;
  bool reverse_ = false;
  bool drop_optimizer_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_map() {
  return std::make_unique<MapVerb>();
}

}  // namespace fsdp::cli
