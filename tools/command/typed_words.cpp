// SPDX-License-Identifier: Apache-2.0
#include "tools/command/typed_words.h"

#include <algorithm>
#include <span>

#include "formats/bytes/base/text.h"

namespace fsdp::cli {
namespace {

struct Meant {
  std::string_view typed;
  std::string_view sentence;
};

constexpr std::string_view kConsolidate = "consolidate makes one file of the shards";
constexpr std::string_view kInspect = "inspect shows what is in a checkpoint";
constexpr std::string_view kExport = "export writes a model that transformers loads";
constexpr std::string_view kVerify = "verify reports all damage";
constexpr std::string_view kReshard = "reshard writes a folder for another number of ranks";
constexpr std::string_view kShard = "shard cuts a file for a number of ranks";
constexpr std::string_view kRename = "rename gives other names";
constexpr std::string_view kMap = "map turns the names of one model library into those of another";
constexpr std::string_view kConvert = "convert writes another format, with --dtype another type";
// A user who wants to delete must not be sent to a verb that only reads.
constexpr std::string_view kRemove =
    "prune removes the old checkpoints of a run, and rename --drop GLOB writes one without some "
    "keys";
constexpr std::string_view kRepair =
    "verify reports all damage; consolidate --keys takes what is undamaged, and --exclude leaves "
    "out the rest";

constexpr Meant kVerbs[] = {
    {"unshard", kConsolidate},
    {"merge", kConsolidate},
    {"combine", kConsolidate},
    {"join", kConsolidate},
    {"gather", kConsolidate},
    {"unify", kConsolidate},
    {"info", kInspect},
    {"show", kInspect},
    {"list", kInspect},
    {"print", kInspect},
    {"summary", kInspect},
    {"describe", kInspect},
    {"to-hf", kExport},
    {"to_hf", kExport},
    {"hf", kExport},
    {"publish", kExport},
    {"check", kVerify},
    {"validate", kVerify},
    {"test", kVerify},
    {"scan", kVerify},
    {"repair", kRepair},
    {"fix", kRepair},
    {"recover", kRepair},
    {"rescue", kRepair},
    {"split", kShard},
    {"partition", kShard},
    {"resize", kReshard},
    {"redistribute", kReshard},
    {"rank", kReshard},
    {"rename-keys", kRename},
    {"remap", kMap},
    {"translate", kMap},
    {"cast", kConvert},
    {"to-safetensors", kConvert},
    {"from-hf", "import reads the files of a published model"},
    {"load", "import reads the files of a published model"},
    {"compare", "diff compares two checkpoints"},
    {"cmp", "diff compares two checkpoints"},
    {"hash", "seal writes the checksums of all files, and verify compares them"},
    {"checksum", "seal writes the checksums of all files, and verify compares them"},
    {"newest", "latest prints the newest sound checkpoint of a run"},
    {"last", "latest prints the newest sound checkpoint of a run"},
    {"get", "extract prints or writes what lies under a key"},
    {"cat", "extract prints or writes what lies under a key"},
    {"soup", "average takes the mean of several checkpoints"},
    {"mean", "average takes the mean of several checkpoints"},
    {"lora", "merge-lora adds an adapter to its model, extract-lora makes one"},
    {"rm", kRemove},
    {"del", kRemove},
    {"delete", kRemove},
    {"erase", kRemove},
    {"remove", kRemove},
    {"clean", kRemove},
    {"purge", kRemove},
    {"rmdir", kRemove},
    {"unlink", kRemove},
};

constexpr std::string_view kOut = "the output is the argument OUT, after PATH";
constexpr std::string_view kRanks = "--world-size N sets the number of ranks";
constexpr std::string_view kThreads = "--threads N sets the number of threads";

constexpr Meant kOptions[] = {
    {"-o", kOut},
    {"--output", kOut},
    {"--out", kOut},
    {"--output-dir", kOut},
    {"--output_dir", kOut},
    {"--dst", kOut},
    {"--nproc", kRanks},
    {"--nprocs", kRanks},
    {"--nproc-per-node", kRanks},
    {"--nproc_per_node", kRanks},
    {"--ranks", kRanks},
    {"--num-ranks", kRanks},
    {"--gpus", kRanks},
    {"--num-gpus", kRanks},
    {"-j", kThreads},
    {"--jobs", kThreads},
    {"--num-threads", kThreads},
    {"--workers", kThreads},
    {"-f", "--force replaces what is there"},
    {"--overwrite", "--force replaces what is there"},
    {"--format", "--to names the format"},
    {"--filter", "--keys and --exclude choose"},
    {"--include", "--keys and --exclude choose"},
};

std::string_view found_in(std::span<const Meant> table, std::string_view word) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const Meant& meant) { return meant.typed == word; });
  return found == table.end() ? std::string_view() : found->sentence;
}

// Returns whether the path is like "organization/model": one slash between two names.
bool is_hub_name(std::string_view path) {
  const std::size_t slash = path.find('/');
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return slash != path.npos && slash != 0 && slash + 1 < path.size() && path[0] != '.' &&
         std::count(path.begin(), path.end(), '/') == 1 &&
         std::all_of(path.begin(), path.end(), [&](char c) { return c == '/' || plain(c); });
}

}  // namespace

std::string_view meant_verb(std::string_view word) {
  return found_in(kVerbs, word);
}

std::string_view meant_option(std::string_view word) {
  return found_in(kOptions, word.substr(0, word.find('=')));
}

std::string meant_path(const std::string& path) {
  if (path.starts_with("~"))
    return "; a shell expands ~ only where it begins a word without quotes";
  if (formats::is_url(path) || !is_hub_name(path)) return {};
  return "; hf://" + formats::escape(path) + " is the repository of that name on the hub";
}

}  // namespace fsdp::cli
