// SPDX-License-Identifier: Apache-2.0
// fsdp-ckpt extract: one tensor, a slice of it, or a value.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <ostream>
#include <sstream>

#include "formats/bytes/base/cast.h"
#include "formats/bytes/base/error.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/json_writer.h"
#include "formats/bytes/base/text.h"
#include "formats/front/open.h"
#include "formats/state/model/check.h"
#include "formats/state/model/select.h"
#include "tools/base/dtype_word.h"
#include "tools/base/placed.h"
#include "tools/base/reading.h"
#include "tools/base/runs.h"
#include "tools/base/verbs.h"
#include "tools/text/array_text.h"
#include "tools/text/value_text.h"
#include "tools/verbs/contents/extraction.h"
#include "tools/verbs/writing/writing.h"

namespace fsdp::cli {
namespace {

using formats::cat;
using formats::Json;
using formats::TensorEntry;

// Arrays with more elements are printed without their middle.
constexpr std::uint64_t kMaxShown = 1000;
// Up to this many elements, text is held back until checksums were compared; longer text is printed
// at once.
constexpr std::uint64_t kMaxHeld = 1U << 20U;
// The most bytes read for one slice: a view may repeat one stored element without end.
constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 44U;
// The OUT that is not a file.
constexpr std::string_view kStandardOutput = "-";
constexpr std::size_t kWholeValueText = 1U << 20U;

// A key, and the slice after it.
struct Wanted {
  std::string key;
  std::optional<std::string> slice;
};

template <typename Entries>
std::optional<std::size_t> find_key(const Entries& entries, const std::string& key) {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const auto& entry) { return entry.key == key; });
  if (found == entries.end()) return std::nullopt;
  return static_cast<std::size_t>(found - entries.begin());
}

// Returns the whole word if it is a key, else its part before the last '['.
Wanted wanted_in(const formats::Index& index, const std::string& word) {
  const bool whole = find_key(index.tensors, word) || find_key(index.values, word);
  const std::size_t open = word.rfind('[');
  if (whole || open == std::string::npos || !word.ends_with(']')) return {word, std::nullopt};
  return {word.substr(0, open), word.substr(open + 1, word.size() - open - 2)};
}

bool is_glob(const std::string& word) {
  return word.find_first_of("*?") != std::string::npos;
}

// Returns a file name made of the key's letters, digits, '.', '_' and '-', and escapes such as %2F
// for a slash.  No two keys have the same name, and no name leaves the folder.
std::string file_name_of(const std::string& key, const std::string& format) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string name;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte < 0x80U && (std::isalnum(byte) != 0 || c == '_' || c == '-' ||
                                        (c == '.' && !name.empty()));
    if (plain) {
      name += c;
    } else {
      name += {'%', kHex[byte >> 4U], kHex[byte & 15U]};
    }
  }
  return name + "." + format;
}

class ExtractVerb : public Verb {
 public:
  ExtractVerb()
      : Verb("extract", "Print or save one tensor: whole or a slice, several by a glob, or a value",
             {"fsdp-ckpt extract step-400 'model.emb.weight[0:4,:]'",
              "fsdp-ckpt extract step-400 'model.blocks.*.weight' arrays --dtype fp32"}) {}
  void declare(OptionSet& options) override {
    options.positional("KEY", word_,
                       "Key of a tensor, with a slice or not, or of a value; or a GLOB");
    options.positional(
        "OUT", writing_.destination,
        "File to write; - for standard output; a folder for a GLOB; text if not given", false);
    options.add("--to", &format_, "npy, pt; by the suffix of OUT if not given").choices = {"npy",
                                                                                           "pt"};
    options.add("--dtype", &dtype_);
    options.add("--all", &all_);
    options.add("--no-verify", &verify_).clears = true;
    options.add("--dry-run", &writing_.dry_run);
    options.add("--force", &writing_.force);
    options.add("--no-sync", &writing_.sync).clears = true;
  }

  int run(const CommonOptions& common, const Streams& streams) override {
    const bool piped = writing_.destination == kStandardOutput;
    if (piped) check_piped(common, streams);
    if (!writing_.destination.empty() && !piped) check_apart(common.path, writing_.destination);
    if (writing_.destination.empty() && (!format_.empty() || writing_.dry_run))
      throw Error(ErrorCode::kUsage, "--to and --dry-run need OUT, a file to write");
    const auto checkpoint = formats::open_checkpoint(common.path, {common.allowed_globals});
    note_unread(common.path, *checkpoint, common, streams);
    const Wanted wanted = wanted_in(checkpoint->index(), word_);
    if (!is_glob(word_) && !common.keys.selects(wanted.key)) {
      throw Error(ErrorCode::kNotFound,
                  cat(checkpoint->description().path, ": ", formats::quote(wanted.key, 200),
                      " is not among the keys that --keys and --exclude select"));
    }
    const bool is_tensor = find_key(checkpoint->index().tensors, wanted.key).has_value();
    const auto value = find_key(checkpoint->index().values, wanted.key);
    if (!is_tensor && !value && is_glob(word_)) return extract_all(*checkpoint, common, streams);
    if (value) {
      print_value(*checkpoint, wanted, *value, common, streams);
      return 0;
    }
    if (!is_tensor) {
      const std::string near = nearest_key(checkpoint->index(), wanted.key);
      const std::string below = wanted.key + ".";
      const bool module = std::ranges::any_of(
          checkpoint->index().tensors,
          [&](const formats::TensorEntry& tensor) { return tensor.key.starts_with(below); });
      throw Error(ErrorCode::kNotFound,
                  cat(checkpoint->description().path, ": no key ", formats::quote(wanted.key, 200),
                      module         ? cat("; what lies below it: fsdp-ckpt extract PATH ",
                                           formats::quote(below + "**", 200), " OUT")
                      : near.empty() ? "; fsdp-ckpt inspect lists them"
                                     : "; did you mean " + formats::quote(near, 200) + "?"));
    }
    checkpoint->keep([&](const std::string& key) { return key == wanted.key; });
    const Extraction extraction = extraction_of(*checkpoint, wanted);
    check_files(*checkpoint);
    check_tensor(extraction);
    if (writing_.destination.empty()) {
      print_tensor(extraction, wanted, common, streams);
    } else {
      save_tensor(extraction, wanted, common, streams);
    }
    return 0;
  }

 private:
  static std::string place(const Extraction& extraction) {
    return cat(extraction.checkpoint->description().path, ": ",
               formats::quote(extraction.entry().key, 200));
  }

  static void check_piped(const CommonOptions& common, const Streams& streams) {
    if (common.json)
      throw Error(ErrorCode::kUsage, "--json and an array cannot both go to standard output");
    if (streams.columns != 0) {
      throw Error(ErrorCode::kUsage,
                  "standard output is a terminal, and the array is binary; pipe it, or leave out - "
                  "for text");
    }
  }

  // Writes every tensor that the glob matches to a file in a new folder.
  int extract_all(formats::Checkpoint& checkpoint, const CommonOptions& common,
                  const Streams& streams) const {
    if (writing_.destination.empty() || writing_.destination == kStandardOutput)
      throw Error(ErrorCode::kUsage, cat(formats::quote(word_),
                                         " is a glob, which needs OUT, a "
                                         "folder to write"));
    const std::string format = format_.empty() ? "npy" : format_;
    const formats::Glob glob(word_);
    checkpoint.keep(
        [&](const std::string& key) { return glob.matches(key) && common.keys.selects(key); });
    const formats::Index& index = checkpoint.index();
    if (index.tensors.empty()) {
      throw Error(ErrorCode::kNotFound, cat(checkpoint.description().path, ": no tensor matches ",
                                            formats::quote(word_, 200)));
    }
    check_files(checkpoint);
    std::vector<Extraction> extractions;
    std::vector<std::unique_ptr<TensorFile>> layouts;
    std::vector<std::string> names;
    std::uint64_t bytes = 0;
    for (const std::size_t number : natural_order(index)) {
      const std::string& key = index.tensors[number].key;
      extractions.push_back(extraction_of(checkpoint, {key, std::nullopt}, number));
      check_tensor(extractions.back());
      layouts.push_back(layout_of(format, extractions.back()));
      names.push_back(file_name_of(key, format));
      bytes += layouts.back()->bytes();
    }
    formats::CopyResult result;
    if (writing_.dry_run) {
      check_free(writing_.destination, bytes);
    } else {
      result = write_tensor_folder(extractions, layouts, names, writing_.destination,
                                   output_options(format, common), common, streams);
      note_placed(writing_.destination);
    }
    Json::Array files;
    for (std::size_t i = 0; common.json && i < names.size(); ++i) {
      files.push_back(
          Json::Object{{"name", names[i]},
                       {"key", extractions[i].entry().key},
                       {"dtype", std::string(formats::torch_name(extractions[i].dtype))},
                       {"shape", numbers(extractions[i].slice.shape())},
                       {"bytes", layouts[i]->bytes()}});
    }
    Json::Object members;
    members.emplace_back("files", std::move(files));
    report_output(head(word_, "torch.Tensor", common), std::move(members),
                  counted(names.size(), "file"), format, bytes, result, common, streams);
    return 0;
  }

  static std::unique_ptr<TensorFile> layout_of(const std::string& format,
                                               const Extraction& extraction) {
    try {
      return make_tensor_file(format, extraction);
    } catch (const Error& error) {
      throw error.in(place(extraction));
    }
  }

  Extraction extraction_of(const formats::Checkpoint& checkpoint, const Wanted& wanted,
                           std::size_t number = 0) const {
    const TensorEntry& tensor = checkpoint.index().tensors[number];
    Extraction extraction;
    extraction.checkpoint = &checkpoint;
    extraction.tensor = number;
    extraction.dtype = tensor.dtype;
    extraction.verify = verify_;
    try {
      extraction.slice =
          wanted.slice ? parse_slice(*wanted.slice, tensor.shape) : whole_slice(tensor.shape);
    } catch (const Error& error) {
      throw error.in(place(extraction));
    }
    if (dtype_.empty()) return extraction;
    const formats::DType dtype = floating_dtype(dtype_);
    if (!formats::is_floating(tensor.dtype))
      throw Error(ErrorCode::kUnsupported,
                  cat(place(extraction), ": is ", formats::torch_name(tensor.dtype),
                      "; --dtype casts floating tensors"));
    extraction.dtype = dtype;
    return extraction;
  }

  // Refuses kept tensors that lie outside their files.
  static void check_files(const formats::Checkpoint& checkpoint) {
    formats::Findings findings;
    formats::check_extents(checkpoint.index(), findings);
    formats::throw_if_damaged(findings, checkpoint.description().path);
  }

  static void check_tensor(const Extraction& extraction) {
    const formats::Index& index = extraction.checkpoint->index();
    const TensorEntry& tensor = extraction.entry();
    formats::Findings findings;
    formats::check_coverage(tensor, findings);
    formats::throw_if_damaged(findings, extraction.checkpoint->description().path);
    const std::uint64_t bytes =
        formats::volume(extraction.slice.box().view()) * formats::item_bytes(tensor.dtype);
    const std::uint64_t most = std::min(kMaxBytes, formats::expansion_limit(index));
    if (bytes > most)
      throw Error(
          most == kMaxBytes ? ErrorCode::kLimitSize : ErrorCode::kLimitRatio,
          cat(place(extraction), ": ", formats::human_bytes(bytes), " are to be read, at most ",
              formats::human_bytes(most), " are; take a slice"));
  }

  static Json::Array numbers(const std::vector<std::int64_t>& shape) {
    return Json::Array(shape.begin(), shape.end());
  }

  static Json::Object head(const std::string& key, const std::string& type,
                           const CommonOptions& common) {
    return {{"schema", "fsdp-ckpt/extract/1"}, {"path", common.path}, {"key", key}, {"type", type}};
  }

  static Json::Object report(const Extraction& extraction, const Wanted& wanted,
                             const CommonOptions& common) {
    Json::Object object = head(wanted.key, "torch.Tensor", common);
    object.emplace_back("dtype", std::string(formats::torch_name(extraction.dtype)));
    object.emplace_back("shape", numbers(extraction.slice.shape()));
    object.emplace_back("slice", wanted.slice ? Json(*wanted.slice) : Json());
    object.emplace_back("tensor_shape", numbers(extraction.entry().shape));
    return object;
  }

  void print_value(const formats::Checkpoint& checkpoint, const Wanted& wanted, std::size_t number,
                   const CommonOptions& common, const Streams& streams) const {
    const std::string at =
        cat(checkpoint.description().path, ": ", formats::quote(wanted.key, 200));
    if (wanted.slice) throw Error(ErrorCode::kUsage, at + ": is not a tensor and cannot be sliced");
    if (!writing_.destination.empty())
      throw Error(ErrorCode::kUnsupported, at + ": is not a tensor; without OUT it is printed");
    const formats::Value value = checkpoint.value(checkpoint.index().values[number]);
    if (!common.json) {
      streams.out << value_text(value, kWholeValueText) << '\n';
      return;
    }
    Json::Object object = head(wanted.key, type_name(value), common);
    object.emplace_back("value", value_json(value));
    streams.out << formats::to_text(object, 1) << '\n';
  }

  void print_tensor(const Extraction& extraction, const Wanted& wanted, const CommonOptions& common,
                    const Streams& streams) const {
    std::ostringstream held;
    held.exceptions(std::ios::badbit);  // out of memory
    const bool hold = !all_ || extraction.numel() <= kMaxHeld;
    std::ostream& out = hold ? held : streams.out;
    if (common.json) {
      print_json(extraction, wanted, common, streams, out);
    } else {
      ArrayPrinter printer(extraction.dtype, extraction.slice.shape(),
                           !all_ && extraction.numel() > kMaxShown, out);
      read_slice(extraction, common, streams,
                 [&](std::span<const std::byte> bytes) { printer.add(bytes); });
      printer.finish();
    }
    extraction.checkpoint->check_unchanged();
    if (hold) streams.out << held.str();
    if (!common.quiet && !common.json) {
      streams.err << cat("fsdp-ckpt: note: ", formats::torch_name(extraction.dtype), " ",
                         formats::shape_text(extraction.slice.shape()), "\n");
    }
  }

  // Writes the elements in the order of the array, as they are read.
  void print_json(const Extraction& extraction, const Wanted& wanted, const CommonOptions& common,
                  const Streams& streams, std::ostream& out) const {
    formats::JsonWriter json([&](std::string_view text) { out << text; });
    json.begin_object();
    for (const auto& [name, value] : report(extraction, wanted, common)) json.member(name, value);
    json.key("elements");
    const auto item = static_cast<std::size_t>(formats::item_bytes(extraction.dtype));
    const bool shown = all_ || extraction.numel() <= kMaxShown;
    if (shown) {
      json.begin_array();
    } else {
      json.value(Json());
    }
    read_slice(extraction, common, streams, [&](std::span<const std::byte> bytes) {
      for (std::size_t at = 0; shown && at < bytes.size(); at += item)
        json.value(element_json(extraction.dtype, bytes.subspan(at, item)));
    });
    if (shown) json.end_array();
    json.end_object();
  }

  std::string format_of_destination() const {
    if (!format_.empty()) return format_;
    if (writing_.destination == kStandardOutput) return "npy";
    const std::string suffix = std::filesystem::path(writing_.destination).extension();
    if (suffix == ".npy") return "npy";
    if (suffix == ".pt" || suffix == ".pth") return "pt";
    throw Error(ErrorCode::kUsage, cat(formats::escape(writing_.destination),
                                       ": the suffix is neither .npy nor .pt; say --to"));
  }

  // Bare elements may look like anything; only an archive has a pickle to check.
  formats::OutputOptions output_options(const std::string& format,
                                        const CommonOptions& common) const {
    formats::OutputOptions options = writing_.output(common);
    if (format != "pt") options.before_commit = nullptr;
    options.replaced = [](std::string_view name) {
      return name.ends_with(".npy") || name.ends_with(".pt");
    };
    return options;
  }

  void save_tensor(const Extraction& extraction, const Wanted& wanted, const CommonOptions& common,
                   const Streams& streams) const {
    const std::string format = format_of_destination();
    const std::unique_ptr<TensorFile> layout = layout_of(format, extraction);
    formats::CopyResult result;
    const bool piped = writing_.destination == kStandardOutput;
    if (piped && !writing_.dry_run) {
      stream_tensor(extraction, *layout, streams.out, common, streams);
      return;
    }
    if (writing_.dry_run) {
      if (!piped) check_free(writing_.destination, layout->bytes());
    } else {
      result = write_tensor_file(extraction, *layout, writing_.destination,
                                 output_options(format, common), common, streams);
      note_placed(writing_.destination);
    }
    report_output(report(extraction, wanted, common), {},
                  cat(formats::torch_name(extraction.dtype), " ",
                      formats::shape_text(extraction.slice.shape())),
                  format, layout->bytes(), result, common, streams);
  }

  // Reports an output, for --json with `members` after those of `object`.
  void report_output(Json::Object object, Json::Object members, const std::string& contents,
                     const std::string& format, std::uint64_t bytes,
                     const formats::CopyResult& result, const CommonOptions& common,
                     const Streams& streams) const {
    if (common.json) {
      object.emplace_back("output", writing_.destination);
      object.emplace_back("format", format);
      object.emplace_back("dry_run", writing_.dry_run);
      std::move(members.begin(), members.end(), std::back_inserter(object));
      object.emplace_back("bytes", bytes);
      object.emplace_back("unchecked_bytes", result.unchecked_bytes);
      streams.out << formats::to_text(object, 1) << '\n';
      return;
    }
    if (common.quiet && !writing_.dry_run) return;
    streams.out << (writing_.dry_run ? "would write " : "") << formats::escape(writing_.destination)
                << ": " << contents << ", " << formats::human_bytes(bytes);
    if (result.unchecked_bytes != 0)
      streams.out << ", " << formats::human_bytes(result.unchecked_bytes)
                  << " read carry no checksum";
    streams.out << '\n';
  }

  std::string word_;
  std::string format_;
  std::string dtype_;
  bool all_ = false;
  bool verify_ = true;
  WritingOptions writing_;
};

}  // namespace

std::unique_ptr<Verb> make_extract() {
  return std::make_unique<ExtractVerb>();
}

}  // namespace fsdp::cli
