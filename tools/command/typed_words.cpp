// SPDX-License-Identifier: Apache-2.0
#include "tools/command/typed_words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <span>

#include "formats/bytes/base/text.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::quote;

struct Meant {
  std::string_view typed;   // words with blanks between them
  std::string_view target;  // a verb, or an option or argument; a row whose target is not there
                            // does not count
  std::string_view more = {};
};

constexpr Meant kVerbs[] = {
    {"unshard combine join gather unify assemble collect full deshard to-pt dcp-to-torch "
     "dcp_to_torch dcp_to_torch_save",
     "consolidate"},
    {"merge", "consolidate",
     "; adapters: fsdp-ckpt merge-lora; several checkpoints: fsdp-ckpt average"},
    {"info show list print summary describe view dump tree keys head", "inspect"},
    {"to-hf to_hf hf publish huggingface save-pretrained save_pretrained", "export"},
    {"from-hf from_hf load from-pretrained from_pretrained", "import"},
    {"check validate test scan fsck audit", "verify"},
    {"repair fix recover rescue restore", "salvage"},
    {"split partition torch-to-dcp torch_to_dcp torch_save_to_dcp", "shard"},
    {"resize redistribute rank ranks repartition", "reshard"},
    {"rename-keys rename_keys mv", "rename"},
    {"remap translate transform", "map", "; fsdp-ckpt maps lists the built-in rules"},
    {"cast to-safetensors to_safetensors safetensors", "convert", "; --dtype casts"},
    {"compare cmp", "diff"},
    {"hash checksum sha256sum md5sum", "seal", "; fsdp-ckpt verify PATH compares them"},
    {"newest last", "latest"},
    {"get cat", "extract"},
    {"soup mean avg", "average"},
    {"lora", "merge-lora", "; the other way: fsdp-ckpt extract-lora"},
    {"unmerge unmerge-lora", "extract-lora"},
    {"edit update", "set"},
    {"nan histogram norms", "stats"},
    // A user who wants to delete must not be sent to a verb that only reads.
    {"rm del delete erase remove clean purge rmdir unlink", "prune",
     "; to write one without some keys: fsdp-ckpt rename PATH OUT --drop GLOB"},
};

constexpr Meant kOptions[] = {
    {"-o --output --out --output-dir --output_dir --dst --save", "OUT"},
    {"-i --input --src --path --checkpoint --ckpt", "PATH"},
    {"--nproc --nprocs --nproc-per-node --nproc_per_node --ranks --num-ranks --gpus --num-gpus",
     "--world-size"},
    {"-j --jobs --num-threads --workers", "--threads"},
    {"-f --overwrite -y --yes", "--force"},
    {"--format --output-format", "--to"},
    {"--filter --include --only", "--keys"},
    {"--ignore --skip --without", "--exclude"},
    {"--quick --shallow", "--fast"},
    {"--dry --simulate", "--dry-run"},
    {"--cast --precision --type", "--dtype"},
    {"--memory --mem --max-mem", "--max-memory"},
    {"--tolerance --tol", "--atol"},
    {"--shard-size --split-size", "--max-shard-size"},
    {"--verbose --debug", "--progress"},
    {"-V --version", {}, "fsdp-ckpt --version prints it"},
};

bool lists(std::string_view words, std::string_view word) {
  return word.find(' ') == word.npos &&
         cat(" ", words, " ").find(cat(" ", word, " ")) != std::string::npos;
}

bool is_listed(std::span<const Meant> table, std::string_view word) {
  return std::any_of(table.begin(), table.end(),
                     [&](const Meant& meant) { return lists(meant.typed, word); });
}

// Returns whether one of the words says the opposite of the other: seal and unseal.
bool are_opposite(std::string_view a, std::string_view b) {
  constexpr std::array<std::string_view, 6> kPrefixes = {"un", "de", "dis", "non", "no-", "not-"};
  if (a.size() < b.size()) std::swap(a, b);
  return a.ends_with(b) && std::find(kPrefixes.begin(), kPrefixes.end(),
                                     a.substr(0, a.size() - b.size())) != kPrefixes.end();
}

// Returns the name that is nearest to a word and not its opposite; empty if none is near.
std::string nearest_of(const std::string& word, std::vector<std::string> names) {
  const auto bare = [](std::string_view name) {
    return name.substr(std::min(name.find_first_not_of('-'), name.size()));
  };
  std::erase_if(names,
                [&](const std::string& name) { return are_opposite(bare(word), bare(name)); });
  return formats::nearest(word, names);
}

// Returns a sentence's text inside another sentence.
std::string lowered(std::string text) {
  if (text.size() > 1 && std::islower(static_cast<unsigned char>(text[1])) != 0)
    text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  return text;
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

std::string verb_remedy(const std::string& word) {
  const std::vector<VerbRecord> verbs = verb_records();
  std::vector<std::string> names = {"help"};
  for (const VerbRecord& verb : verbs) {
    names.push_back(verb.name);
    if (!verb.alias.empty()) names.push_back(verb.alias);
  }
  for (const Meant& meant : kVerbs) {
    if (!lists(meant.typed, word)) continue;
    for (const VerbRecord& verb : verbs) {
      if (verb.name == meant.target)
        return cat("; to ", lowered(verb.brief), ": ", command_of(verb), meant.more);
    }
  }
  std::error_code unknown;
  if (std::filesystem::exists(word, unknown) || formats::is_url(word))
    return cat(", but a checkpoint may be: fsdp-ckpt inspect ", formats::escape(word));
  const std::string near = nearest_of(word, names);
  return near.empty() ? "; fsdp-ckpt --help lists them" : "; did you mean " + near + "?";
}

bool is_foreign_verb(std::string_view word) {
  return is_listed(kVerbs, word);
}

bool is_foreign_option(std::string_view name) {
  return is_listed(kOptions, name);
}

std::string option_remedy(const VerbRecord& verb, const std::string& option) {
  const std::string name = option.substr(0, option.find('='));
  std::vector<OptionRecord> records = common_records();
  records.insert(records.end(), verb.options.begin(), verb.options.end());
  records.insert(records.end(), verb.positionals.begin(), verb.positionals.end());
  const auto record_of = [&](std::string_view wanted) {
    return std::find_if(records.begin(), records.end(), [&](const OptionRecord& record) {
      return std::find(record.names.begin(), record.names.end(), wanted) != record.names.end();
    });
  };
  const auto shown = [](const OptionRecord& record) {
    return cat("; did you mean ", record.names.back(), record.type.empty() ? "" : " ", record.type,
               " (", lowered(record.help.substr(0, record.help.find_first_of(":;"))), ")?");
  };
  const std::string help = cat("; see fsdp-ckpt ", verb.name, " --help");
  for (const Meant& meant : kOptions) {
    if (!lists(meant.typed, name)) continue;
    if (meant.target.empty()) return cat("; ", meant.more);
    const auto record = record_of(meant.target);
    const bool is_last = meant.target == "OUT" && verb.more_ends_in_output;
    if (record == records.end() && !is_last) continue;
    if (meant.target.starts_with('-')) return shown(*record);
    return cat("; ", meant.target, " is an argument: ", command_of(verb));
  }
  if (is_foreign_option(name) || !name.starts_with("--")) return help;
  // What an option does not ask for needs no word.
  const auto opposite =
      record_of(name.starts_with("--no-") ? "--" + name.substr(5) : "--no-" + name.substr(2));
  if (opposite != records.end())
    return opposite->type.empty() ? cat("; leave out ", opposite->names.back()) : shown(*opposite);
  std::vector<std::string> names;
  for (const OptionRecord& record : records) names.push_back(record.names.back());
  const std::string near = nearest_of(name, std::move(names));
  return near.empty() ? help : "; did you mean " + near + "?";
}

std::string meant_path(const std::string& path) {
  if (path.starts_with("~")) return "; type it without quotes: only then a shell expands ~";
  if (formats::is_url(path) || !is_hub_name(path)) return {};
  return "; hf://" + formats::escape(path) + " is the repository of that name on the hub";
}

}  // namespace fsdp::cli
