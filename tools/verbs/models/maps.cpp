// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt maps: the built-in maps.
#include <algorithm>
#include <array>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/map/builtin.h"
#include "formats/changes/map/rules.h"
#include "tools/base/verbs.h"
#include "tools/verbs/models/map_choice.h"

namespace fsdp::cli {
namespace {

using formats::Json;
using formats::map::BuiltinMap;

const BuiltinMap& map_named(const std::string& name) {
  for (const BuiltinMap& map : formats::map::builtin_maps()) {
    if (map.name == name) return map;
  }
  throw Error(ErrorCode::kNotFound,
              formats::cat("there is no built-in map ", formats::quote(name), meant_map(name)));
}

class MapsVerb : public Verb {
 public:
  MapsVerb()
      : Verb("maps", "List or print the built-in maps",
             {"fsdp-ckpt maps", "fsdp-ckpt maps --show torchtitan-llama3-hf > rules.toml"}) {}
  std::string path_help() const override { return {}; }
  void declare(OptionSet& options) override { options.add("--show", &show_); }

  int run(const CommonOptions& common, const Streams& streams) override {
    if (!show_.empty()) {
      const BuiltinMap& map = map_named(show_);
      if (common.json) {
        print(Json::Object{{"name", map.name}, {"rules", map.text}}, streams);
      } else {
        streams.out << map.text;
      }
      return 0;
    }
    Json::Array maps;
    std::vector<std::array<std::string, 3>> rows;
    std::size_t names = 0;
    std::size_t versions = 0;
    for (const BuiltinMap& map : formats::map::builtin_maps()) {
      const auto rules = formats::map::parse_rules(map.text, std::string(map.name),
                                                   formats::map::Direction::kForward);
      Json::Array own(rules.versions.begin(), rules.versions.end());
      maps.push_back(Json::Object{
          {"name", map.name}, {"versions", std::move(own)}, {"description", rules.description}});
      rows.push_back(
          {std::string(map.name), formats::joined(rules.versions, ", "), rules.description});
      names = std::max(names, rows.back()[0].size());
      versions = std::max(versions, rows.back()[1].size());
    }
    if (common.json) {
      print(Json::Object{{"maps", std::move(maps)}}, streams);
      return 0;
    }
    for (const auto& [name, tried, description] : rows) {
      streams.out << name << std::string(names + 2 - name.size(), ' ') << tried
                  << std::string(versions + 2 - tried.size(), ' ') << description << '\n';
    }
    return 0;
  }

 private:
  void print(Json::Object members, const Streams& streams) const {
    members.insert(members.begin(), {"schema", "fsdp-ckpt/maps/1"});
    streams.out << formats::to_text(Json(std::move(members)), 1) << '\n';
  }

  std::string show_;
};

}  // namespace

std::unique_ptr<Verb> make_maps() {
  return std::make_unique<MapsVerb>();
}

}  // namespace fsdp::cli
