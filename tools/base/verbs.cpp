// SPDX-License-Identifier: Apache-2.0
#include "tools/base/verbs.h"

namespace fsdp::cli {

std::vector<std::unique_ptr<Verb>> all_verbs() {
  std::vector<std::unique_ptr<Verb>> verbs;
  verbs.push_back(make_inspect());
  verbs.push_back(make_consolidate());
  verbs.push_back(make_convert());
  verbs.push_back(make_shard());
  verbs.push_back(make_reshard());
  verbs.push_back(make_rekey());
  verbs.push_back(make_rename());
  verbs.push_back(make_map());
  verbs.push_back(make_maps());
  verbs.push_back(make_export());
  verbs.push_back(make_import());
  verbs.push_back(make_set());
  verbs.push_back(make_resize_vocab());
  verbs.push_back(make_groups());
  verbs.push_back(make_average());
  verbs.push_back(make_merge_lora());
  verbs.push_back(make_extract_lora());
  verbs.push_back(make_verify());
  verbs.push_back(make_latest());
  verbs.push_back(make_prune());
  verbs.push_back(make_seal());
  verbs.push_back(make_diff());
  verbs.push_back(make_stats());
  verbs.push_back(make_extract());
  return verbs;
}

}  // namespace fsdp::cli
