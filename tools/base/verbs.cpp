// SPDX-License-Identifier: Apache-2.0
#include "tools/base/verbs.h"

namespace fsdp::cli {

std::vector<std::unique_ptr<Verb>> all_verbs() {
  std::vector<std::unique_ptr<Verb>> verbs;
  for (const auto make :
       {make_inspect,    make_consolidate,  make_convert,      make_shard,  make_reshard,
        make_rekey,      make_rename,       make_map,          make_maps,   make_export,
        make_import,     make_set,          make_resize_vocab, make_groups, make_average,
        make_merge_lora, make_extract_lora, make_verify,       make_latest, make_prune,
        make_seal,       make_diff,         make_stats,        make_extract}) {
    verbs.push_back(make());
  }
  return verbs;
}

}  // namespace fsdp::cli
