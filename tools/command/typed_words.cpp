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

// In small letters, with dashes; a typed word may have others.
constexpr Meant kVerbs[] = {
    {"unshard combine join gather unify assemble collect full deshard to-pt dcp-to-torch "
     "dcp-to-torch-save format-utils merge-weights merge-fsdp-weights zero-to-fp32 zero-to-fp32.py "
     "load torch.load load-state-dict torch.save to-torch",
     "consolidate"},
    {"merge", "consolidate",
     "; adapters: fsdp-ckpt merge-lora; several checkpoints: fsdp-ckpt average"},
    {"deepspeed", "consolidate", "; DeepSpeed's folders are read, not written"},
    {"info show list print summary describe view dump tree keys head metadata meta stat size du "
     "shapes params parameters count state-dict find open",
     "inspect"},
    {"grep search", "inspect", " -k GLOB"},
    {"html visualize plot treemap page", "inspect", " --html FILE"},
    {"to-hf hf publish huggingface save-pretrained convert-to-hf convert-hf export-hf hf-export "
     "dcp-to-hf vllm",
     "export"},
    {"gguf ollama", "export", "; llama.cpp's convert_hf_to_gguf.py reads that folder"},
    {"push push-to-hub", "export", "; hf upload sends that folder"},
    {"from-hf from-pretrained hf-to-dcp hf-import import-hf", "import"},
    {"download pull", "inspect", "; PATH may be hf://ORGANIZATION/MODEL, and every verb reads it"},
    {"check validate test scan fsck audit doctor integrity lint", "verify"},
    {"repair fix recover rescue restore", "salvage"},
    {"split partition cut chunk torch-to-dcp torch-save-to-dcp to-dcp dcp fsdp fsdp2", "shard"},
    {"resize redistribute rank ranks repartition", "reshard"},
    {"rename-keys mv strip", "rename"},
    {"drop exclude omit", "rename", " --drop GLOB"},
    {"filter select", "convert", " --keys GLOB"},
    {"remap translate transform", "map", "; fsdp-ckpt maps lists the built-in rules"},
    {"quantize compress ptq", "export", " --quantize SCHEME"},
    {"dequantize unquantize decompress", "export", " --dequantize"},
    {"cast to-safetensors safetensors half bf16 fp16 downcast upcast", "convert",
     "; --dtype casts"},
    {"save copy cp upload", "convert", "; OUT may be s3://BUCKET/NAME"},
    {"megatron megatron-core mcore", "convert", " --to torch_dist"},
    {"compare cmp equal allclose", "diff"},
    {"hash checksum sha256sum md5sum sign", "seal", "; fsdp-ckpt verify PATH compares them"},
    {"newest last resume continue", "latest"},
    {"get cat tensor", "extract"},
    {"numpy npy npz", "extract", " OUT.npy"},
    {"soup mean avg swa ema sum add average-checkpoints", "average"},
    {"lora peft fuse merge-and-unload merge-adapter", "merge-lora",
     "; the other way: fsdp-ckpt extract-lora"},
    {"unmerge unmerge-lora", "extract-lora"},
    {"resize-token-embeddings resize-embeddings add-tokens vocab", "resize-vocab"},
    {"edit update", "set"},
    {"nan inf histogram norm norms min max", "stats"},
    // A user who wants to delete must not be sent to a verb that only reads.
    {"rm del delete erase remove clean purge rmdir unlink gc", "prune",
     "; to write one without some keys: fsdp-ckpt rename PATH OUT --drop GLOB"},
    {"version", {}, "fsdp-ckpt --version prints it"},
    {"man manual usage", {}, "fsdp-ckpt help VERB explains a verb"},
    {"completion completions",
     {},
     "fsdp-ckpt --print-completion bash (zsh, fish) prints the script"},
};

constexpr Meant kOptions[] = {
    {"-o --output --out --output-dir --dst --save", "OUT"},
    {"-o --output --out", {}, "the answer goes to standard output: > FILE"},
    {"-i --input --src --path --checkpoint --ckpt", "PATH"},
    {"--other --reference --base", "OTHER"},
    {"--tensor --name", "KEY"},
    {"--slice --index --rows", "KEY", "a slice stands behind the key: 'KEY[0:2]'"},
    {"--adapter --lora", "MORE"},
    {"--nproc --nprocs --nproc-per-node --ranks --num-ranks --gpus --num-gpus", "--world-size"},
    {"-j --jobs --num-threads --workers", "--threads"},
    {"-f --overwrite", "--force"},
    {"-y --yes", "--force"},
    {"-y --yes", {}, "nothing is asked, leave it out"},
    {"--format --output-format", "--to"},
    {"--safe-serialization --safetensors", "--to"},
    {"--format --output-format", "--json"},
    {"--filter --include --only --model-only --weights-only", "--keys"},
    {"--ignore --skip --without --no-optimizer --no-optim --skip-optimizer", "--exclude"},
    {"--quick --shallow", "--fast"},
    {"--deep --full --thorough --checksum --checksums", "--fast",
     "without --fast all data are read"},
    {"--repair --fix", {}, "fsdp-ckpt salvage PATH OUT writes what is whole"},
    {"--dry --simulate", "--dry-run"},
    {"--cast --precision --type --bf16 --bfloat16 --fp16 --float16 --half --fp32 --float32",
     "--dtype"},
    {"--memory --mem --max-mem", "--max-memory"},
    {"--tolerance --tol", "--atol"},
    {"--shard-size --split-size", "--max-shard-size"},
    {"--prefix --remove-prefix", "--strip-prefix"},
    {"--vocab-size --num-tokens", "--size"},
    {"--by", "--key-by"},
    {"--list", "--show", "without options the verb lists them"},
    {"--verbose --debug", "--progress"},
    {"-V --version", {}, "fsdp-ckpt --version prints it"},
};

// The most verbs that are named because they have an option.
constexpr std::size_t kMostOwners = 3;

// Returns the word as tables and names have it: small letters, and dashes between words.
std::string usual(std::string_view word) {
  std::string text;
  const bool is_option = word.starts_with("-");
  for (const char c : word) {
    const bool single = is_option && !word.starts_with("--");
    text += c == '_' ? '-'
            : single ? c
                     : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

bool lists(std::string_view words, std::string_view word) {
  return word.find(' ') == word.npos &&
         cat(" ", words, " ").find(cat(" ", word, " ")) != std::string::npos;
}

bool is_listed(std::span<const Meant> table, std::string_view typed) {
  return std::any_of(table.begin(), table.end(), [word = usual(typed)](const Meant& meant) {
    return lists(meant.typed, word);
  });
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

std::string verb_remedy(const std::vector<std::string>& args) {
  const std::string word = usual(args.front());
  const std::vector<VerbRecord> verbs = verb_records();
  const auto named = [&](std::string_view name) {
    return std::find_if(verbs.begin(), verbs.end(), [&](const VerbRecord& verb) {
      return verb.name == name || (!name.empty() && verb.alias == name);
    });
  };
  for (const Meant& meant : kVerbs) {
    if (!lists(meant.typed, word)) continue;
    if (meant.target.empty()) return cat("; ", meant.more);
    if (const auto verb = named(meant.target); verb != verbs.end())
      return cat("; to ", lowered(verb->brief), ": ", command_of(*verb), meant.more);
  }
  // The verb may stand elsewhere: step-400 verify, --verify step-400.
  for (std::size_t i = 1; i < args.size(); ++i) {
    const bool dashed = args[i].starts_with("--");
    const auto verb = named(std::string_view(args[i]).substr(dashed ? 2 : 0));
    if (verb == verbs.end()) continue;
    return cat(dashed ? "; a verb has no dashes, and comes first: " : "; the verb comes first: ",
               command_of(*verb));
  }
  std::error_code unknown;
  if (std::filesystem::exists(args.front(), unknown) || formats::is_url(args.front()))
    return cat(", but a checkpoint may be: fsdp-ckpt inspect ", formats::escape(args.front()));
  std::vector<std::string> names = {"help"};
  for (const VerbRecord& verb : verbs) {
    names.push_back(verb.name);
    if (!verb.alias.empty()) names.push_back(verb.alias);
  }
  const std::string near = nearest_of(word, names);
  if (!near.empty()) return "; did you mean " + near + "?";
  // accelerate merge-weights
  if (args.size() > 1 && is_foreign_verb(args[1]))
    return verb_remedy(std::vector<std::string>(args.begin() + 1, args.end()));
  return "; fsdp-ckpt --help lists them";
}

bool is_foreign_verb(std::string_view word) {
  return is_listed(kVerbs, word);
}

bool is_foreign_option(std::string_view name) {
  return is_listed(kOptions, name);
}

std::string option_remedy(const VerbRecord& verb, const std::string& option) {
  const std::string name = usual(option.substr(0, option.find('=')));
  std::vector<OptionRecord> records = common_records();
  records.insert(records.end(), verb.options.begin(), verb.options.end());
  records.insert(records.end(), verb.positionals.begin(), verb.positionals.end());
  const auto has = [](const OptionRecord& record, std::string_view wanted) {
    return std::find(record.names.begin(), record.names.end(), wanted) != record.names.end();
  };
  const auto record_of = [&](std::string_view wanted) {
    return std::find_if(records.begin(), records.end(),
                        [&](const OptionRecord& record) { return has(record, wanted); });
  };
  const auto shown = [](const OptionRecord& record) {
    return cat("; did you mean ", record.names.back(), record.type.empty() ? "" : " ", record.type,
               " (", lowered(record.help.substr(0, record.help.find_first_of(":;"))), ")?");
  };
  std::string help = cat("; see fsdp-ckpt ", verb.name, " --help");
  const std::string command = command_of(verb);
  for (const Meant& meant : kOptions) {
    if (!lists(meant.typed, name)) continue;
    const auto record = record_of(meant.target);
    const bool is_last = meant.target == "OUT" && verb.more_ends_in_output;
    if (!meant.target.empty() && record == records.end() && !is_last) continue;
    if (!meant.more.empty()) return cat("; ", meant.more);
    if (meant.target.starts_with('-')) return shown(*record);
    const bool is_there = cat(command, " ").find(cat(" ", meant.target)) != std::string::npos;
    return cat("; ", meant.target, " is an argument: ", command,
               is_there ? "" : cat(" ", meant.target));
  }
  if (is_foreign_option(name) || !name.starts_with("--")) return help;
  if (record_of(name) != records.end()) return cat("; did you mean ", name, "?");
  // What an option does not ask for needs no word.
  const auto opposite =
      record_of(name.starts_with("--no-") ? "--" + name.substr(5) : "--no-" + name.substr(2));
  if (opposite != records.end())
    return opposite->type.empty() ? cat("; leave out ", opposite->names.back()) : shown(*opposite);
  // set PATH OUT --step=5
  if (verb.name == "set" && option.find('=') != option.npos)
    return cat("; KEY=VALUE has no dashes: ", command, " ", formats::escape(option.substr(2)));
  // A verb, or an option of other verbs.
  std::vector<std::string> owners;
  for (const VerbRecord& other : verb_records()) {
    if (other.name == name.substr(2)) return cat("; that is a verb: ", command_of(other));
    if (std::any_of(other.options.begin(), other.options.end(),
                    [&](const OptionRecord& record) { return has(record, name); }))
      owners.push_back("fsdp-ckpt " + other.name);
  }
  if (!owners.empty())
    return owners.size() > kMostOwners ? help
                                       : cat("; ", formats::joined(owners, ", "),
                                             owners.size() == 1 ? " has it" : " have it");
  std::vector<std::string> names;
  for (const OptionRecord& record : records) names.push_back(record.names.back());
  const std::string near = nearest_of(name, std::move(names));
  if (!near.empty()) return "; did you mean " + near + "?";
  return help;
}

std::string meant_path(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  if (path.starts_with("~") || path.starts_with("$"))
    return cat("; type it without quotes: only then a shell expands ", path.substr(0, 1));
  if (path.find_first_of("*?") != path.npos)
    return "; a shell expands * and ? only without quotes, and if something matches";
  if (path == "-") return "; standard input is not read: give a file or folder";
  if (formats::is_url(path)) return {};
  for (const std::string_view scheme : {"s3", "gs", "hf", "http", "https"}) {
    if (path.starts_with(cat(scheme, ":")) || path.starts_with(cat(scheme, "//")))
      return cat("; a URL begins with ", scheme, "://");
  }
  const fs::path above = fs::path(path).parent_path();
  if (path.ends_with('/') && fs::exists(above, unknown))
    return cat("; it is a file: ", formats::escape(above.native()));
  if (fs::is_directory(above, unknown))
    return cat("; fsdp-ckpt inspect ", formats::escape(above.native()), " shows what is there");
  if (!is_hub_name(path)) return {};
  return "; hf://" + formats::escape(path) + " is the repository of that name on the hub";
}

}  // namespace fsdp::cli
