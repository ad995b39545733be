// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt maps: the built-in maps.
#include <algorithm>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/changes/map/builtin.h"
#include "formats/changes/map/rules.h"
#include "tools/base/verbs.h"
#include "tools/text/terminal_text.h"
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

std::string in_small_letters(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

struct ListedMap {
  std::string name;
  formats::map::Rules rules;
};

// Returns whether the word stands in what tells a map from others, in capitals or not.
bool mentions(const ListedMap& map, const std::string& word) {
  const auto holds = [&](const std::string& text) {
    return in_small_letters(text).find(word) != std::string::npos;
  };
  return holds(map.name) || holds(map.rules.description) ||
         std::any_of(map.rules.versions.begin(), map.rules.versions.end(), holds) ||
         std::any_of(map.rules.model_types.begin(), map.rules.model_types.end(), holds);
}

// Maps of the same versions.
struct MapGroup {
  std::string versions;
  std::vector<const ListedMap*> maps;
};

std::vector<MapGroup> grouped(const std::vector<ListedMap>& maps) {
  std::vector<MapGroup> groups;
  for (const ListedMap& map : maps) {
    const std::string versions = formats::joined(map.rules.versions, ", ");
    const auto found = std::find_if(groups.begin(), groups.end(), [&](const MapGroup& group) {
      return group.versions == versions;
    });
    if (found != groups.end()) {
      found->maps.push_back(&map);
    } else {
      groups.push_back({versions, {&map}});
    }
  }
  return groups;
}

// A group of more maps is listed by names alone, unless a word chooses among all.
constexpr std::size_t kMostDescribed = 20;
constexpr std::size_t kColumns = 120;

class MapsVerb : public Verb {
 public:
  MapsVerb()
      : Verb("maps", "List or print the built-in maps",
             {"fsdp-ckpt maps", "fsdp-ckpt maps mixtral",
              "fsdp-ckpt maps --show torchtitan-llama3-hf > rules.toml"}) {}
  std::string path_help() const override { return {}; }
  void declare(OptionSet& options) override {
    options.positional("WORD", word_,
                       "Only maps that have it in their name, model types, versions or description",
                       false);
    options.add("--show", &show_);
  }

  int run(const CommonOptions& common, const Streams& streams) override {
    if (!show_.empty()) {
      if (!word_.empty()) throw Error(ErrorCode::kUsage, "--show names a map: leave WORD out");
      const BuiltinMap& map = map_named(show_);
      if (common.json) {
        print(Json::Object{{"name", map.name}, {"rules", map.text}}, streams);
      } else {
        streams.out << map.text;
      }
      return 0;
    }
    const std::vector<ListedMap> maps = chosen();
    if (common.json) {
      print(Json::Object{{"maps", as_json(maps)}}, streams);
      return 0;
    }
    for (const MapGroup& group : grouped(maps)) {
      streams.out << (group.versions.empty() ? "of no version" : group.versions) << '\n';
      if (word_.empty() && group.maps.size() > kMostDescribed) {
        list_names(group, streams);
      } else {
        list_described(group, streams);
      }
    }
    if (maps.size() == 1)
      streams.out << "its rules: fsdp-ckpt maps --show " << maps.front().name << '\n';
    return 0;
  }

 private:
  // Throws: kNotFound if the word is in none.
  std::vector<ListedMap> chosen() const {
    const std::string word = in_small_letters(word_);
    std::vector<ListedMap> maps;
    for (const BuiltinMap& map : formats::map::builtin_maps()) {
      ListedMap one{std::string(map.name),
                    formats::map::parse_rules(map.text, std::string(map.name),
                                              formats::map::Direction::kForward)};
      if (mentions(one, word)) maps.push_back(std::move(one));
    }
    if (maps.empty()) {
      throw Error(ErrorCode::kNotFound, formats::cat("no built-in map mentions ",
                                                     formats::quote(word_), meant_map(word_)));
    }
    return maps;
  }

  static Json::Array as_json(const std::vector<ListedMap>& maps) {
    Json::Array out;
    for (const auto& [name, rules] : maps) {
      out.push_back(Json::Object{
          {"name", name},
          {"versions", Json::Array(rules.versions.begin(), rules.versions.end())},
          {"model_types", Json::Array(rules.model_types.begin(), rules.model_types.end())},
          {"description", rules.description}});
    }
    return out;
  }

  static void list_described(const MapGroup& group, const Streams& streams) {
    std::size_t names = 0;
    for (const ListedMap* map : group.maps) names = std::max(names, map->name.size());
    for (const ListedMap* map : group.maps) {
      streams.out << "  " << map->name << std::string(names + 2 - map->name.size(), ' ')
                  << map->rules.description << '\n';
    }
  }

  static void list_names(const MapGroup& group, const Streams& streams) {
    std::vector<std::string> names;
    for (const ListedMap* map : group.maps) names.push_back(map->name);
    streams.out << "  " << packed(names, "  ", kColumns, 2) << '\n'
                << "  " << names.size()
                << " maps: fsdp-ckpt maps WORD describes those with a word\n";
  }

  void print(Json::Object members, const Streams& streams) const {
    members.insert(members.begin(), {"schema", "fsdp-ckpt/maps/1"});
    streams.out << formats::to_text(Json(std::move(members)), 1) << '\n';
  }

  std::string word_;
  std::string show_;
};

}  // namespace

std::unique_ptr<Verb> make_maps() {
  return std::make_unique<MapsVerb>();
}

}  // namespace fsdp::cli
