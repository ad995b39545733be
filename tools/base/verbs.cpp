// SPDX-License-Identifier: Apache-2.0
#include "tools/base/verbs.h"

namespace fsdp::cli {

std::vector<std::unique_ptr<Verb>> all_verbs() {
  struct Group {
    std::string_view title;
    std::vector<std::unique_ptr<Verb> (*)()> makers;
  };
  const Group groups[] = {
      {"Look", {make_inspect, make_verify, make_diff, make_stats, make_extract}},
      {"Join and convert", {make_consolidate, make_convert}},
      {"To and from Hugging Face",
       {make_export, make_import, make_map, make_maps, make_merge_lora, make_extract_lora}},
      {"Other ranks", {make_reshard, make_shard}},
      {"Change", {make_rename, make_rekey, make_set, make_resize_vocab, make_groups, make_average}},
      {"Look after a run", {make_latest, make_prune, make_seal, make_salvage}}};
  std::vector<std::unique_ptr<Verb>> verbs;
  for (const Group& group : groups) {
    for (const auto make : group.makers) {
      verbs.push_back(make());
      verbs.back()->set_group(group.title);
    }
  }
  return verbs;
}

}  // namespace fsdp::cli
