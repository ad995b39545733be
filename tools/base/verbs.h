// SPDX-License-Identifier: Apache-2.0
// The verbs of fsdp-ckpt; each is made by the file with its name.
#pragma once

#include <memory>
#include <vector>

#include "tools/base/verb.h"

namespace fsdp::cli {

std::unique_ptr<Verb> make_inspect();
std::unique_ptr<Verb> make_consolidate();
std::unique_ptr<Verb> make_convert();
std::unique_ptr<Verb> make_shard();
std::unique_ptr<Verb> make_reshard();
std::unique_ptr<Verb> make_rekey();
std::unique_ptr<Verb> make_rename();
std::unique_ptr<Verb> make_map();
std::unique_ptr<Verb> make_maps();
std::unique_ptr<Verb> make_export();
std::unique_ptr<Verb> make_import();
std::unique_ptr<Verb> make_average();
std::unique_ptr<Verb> make_set();
std::unique_ptr<Verb> make_resize_vocab();
std::unique_ptr<Verb> make_groups();
std::unique_ptr<Verb> make_merge_lora();
std::unique_ptr<Verb> make_extract_lora();
std::unique_ptr<Verb> make_verify();
std::unique_ptr<Verb> make_latest();
std::unique_ptr<Verb> make_prune();
std::unique_ptr<Verb> make_seal();
std::unique_ptr<Verb> make_diff();
std::unique_ptr<Verb> make_stats();
std::unique_ptr<Verb> make_extract();

// Returns all verbs, in the order of help.
std::vector<std::unique_ptr<Verb>> all_verbs();

}  // namespace fsdp::cli
