// SPDX-License-Identifier: Apache-2.0
#include "tools/command/typed_words.h"

#include <algorithm>
#include <span>

#include "formats/bytes/base/text.h"

namespace fsdp::cli {
namespace {

struct Meant {
  std::string_view typed;  // words with blanks between them
  std::string_view sentence;
};

constexpr Meant kVerbs[] = {
    {"unshard merge combine join gather unify", "consolidate makes one file of the shards"},
    {"info show list print summary describe", "inspect shows what is in a checkpoint"},
    {"to-hf to_hf hf publish", "export writes a model that transformers loads"},
    {"check validate test scan", "verify reports all damage"},
    {"repair fix recover rescue",
     "verify reports all damage; consolidate --keys takes what is undamaged, and --exclude leaves "
     "out the rest"},
    {"split partition", "shard cuts a file for a number of ranks"},
    {"resize redistribute rank", "reshard writes a folder for another number of ranks"},
    {"rename-keys", "rename gives other names"},
    {"remap translate", "map turns the names of one model library into those of another"},
    {"cast to-safetensors", "convert writes another format, with --dtype another type"},
    {"from-hf load", "import reads the files of a published model"},
    {"compare cmp", "diff compares two checkpoints"},
    {"hash checksum", "seal writes the checksums of all files, and verify compares them"},
    {"newest last", "latest prints the newest sound checkpoint of a run"},
    {"get cat", "extract prints or writes what lies under a key"},
    {"soup mean", "average takes the mean of several checkpoints"},
    {"lora", "merge-lora adds an adapter to its model, extract-lora makes one"},
    // A user who wants to delete must not be sent to a verb that only reads.
    {"rm del delete erase remove clean purge rmdir unlink",
     "prune removes the old checkpoints of a run, and rename --drop GLOB writes one without some "
     "keys"},
};

constexpr Meant kOptions[] = {
    {"-o --output --out --output-dir --output_dir --dst",
     "the output is the argument OUT, after PATH"},
    {"--nproc --nprocs --nproc-per-node --nproc_per_node --ranks --num-ranks --gpus --num-gpus",
     "--world-size N sets the number of ranks"},
    {"-j --jobs --num-threads --workers", "--threads N sets the number of threads"},
    {"-f --overwrite", "--force replaces what is there"},
    {"--format", "--to names the format"},
    {"--filter --include", "--keys and --exclude choose"},
};

std::string_view found_in(std::span<const Meant> table, std::string_view word) {
  const auto found = std::find_if(table.begin(), table.end(), [&](const Meant& meant) {
    return word.find(' ') == word.npos &&
           formats::cat(" ", meant.typed, " ").find(formats::cat(" ", word, " ")) != word.npos;
  });
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
