// SPDX-License-Identifier: Apache-2.0
#include "tools/consolidate.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <ostream>

#include "formats/base/atomic_output.h"
#include "formats/base/interrupt.h"
#include "formats/base/json.h"
#include "formats/base/text.h"
#include "formats/layout/safetensors_writer.h"
#include "formats/layout/source_pieces.h"
#include "formats/layout/state_tree.h"
#include "formats/layout/torch_globals.h"
#include "formats/layout/torch_save_writer.h"
#include "formats/model/copy.h"
#include "formats/open.h"
#include "tools/progress.h"
#include "tools/verbs.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;
using formats::cat;
using formats::Checkpoint;

// The share of --max-memory that copying may use; the rest is for the index, headers and the
// program itself.
constexpr std::uint64_t kBufferShare = 4;

struct OutputFileInfo {
  std::string name;
  std::uint64_t bytes;
};

// What is going to be written, or was.
struct Summary {
  std::string format;
  std::vector<OutputFileInfo> files;
  std::size_t tensors = 0;
  std::size_t values = 0;
  std::uint64_t tensor_bytes = 0;
  std::uint64_t unchecked_bytes = 0;
  std::uint64_t buffer_bytes = 0;
  std::vector<std::pair<std::string, std::string>> tied;
  std::size_t dropped_values = 0;
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const OutputFileInfo& file : files) sum += file.bytes;
    return sum;
  }
};

std::string format_of(const ConsolidateOptions& options) {
  if (!options.format.empty()) return options.format;
  if (options.max_shard_bytes) return "safetensors";
  const std::string suffix = fs::path(options.destination).extension();
  if (suffix == ".pt" || suffix == ".pth" || suffix == ".bin" || suffix == ".ckpt") return "pt";
  if (suffix == ".safetensors") return "safetensors";
  throw Error(ErrorCode::kUsage,
              cat(formats::escape(options.destination), ": the suffix ", formats::quote(suffix),
                  " names no format; use .pt or .safetensors, or give --to pt|safetensors"));
}

// Refuses a destination that is the source or lies inside it, links followed.
void check_apart(const std::string& source, const std::string& destination) {
  const fs::path from = fs::weakly_canonical(source);
  const fs::path to = fs::weakly_canonical(destination);
  fs::path at = to;
  for (;;) {
    if (at == from) {
      const bool same = at == to;
      throw Error(ErrorCode::kSamePath,
                  cat(formats::escape(destination), ": ", same ? "is" : "lies inside",
                      " the checkpoint being read; name another place"));
    }
    if (!at.has_relative_path() || at.parent_path() == at) return;
    at = at.parent_path();
  }
}

// Refuses what PyTorch would have to run code for to load it.
void check_globals(const formats::Value& root, const CommonOptions& common) {
  // Most often there are none: only then is it worth finding out where they are.
  if (formats::unknown_globals_in(root).empty()) return;
  for (const formats::Leaf& leaf : formats::leaves_of(root)) {
    for (const std::string& name : formats::unknown_globals_in(leaf.value)) {
      if (common.allowed_globals.contains(name)) continue;
      throw Error(
          ErrorCode::kGlobal,
          cat(formats::escape(common.path), ": ", formats::quote(leaf.key, 200), ": global ",
              formats::quote(name), " is not known to be plain data; leave it out with --exclude ",
              formats::quote(leaf.key, 200), ", or accept it with --allow-global ",
              formats::escape(name)));
    }
  }
}

class Consolidation {
 public:
  Consolidation(const ConsolidateOptions& options, const Streams& streams)
      : options_(options), streams_(streams) {}

  int run() {
    summary_.format = format_of(options_);
    check_apart(options_.common.path, options_.destination);
    source_ = formats::open_checkpoint(options_.common.path, {options_.common.allowed_globals});
    select();
    formats::check_before_copy(*source_, [] { return formats::interrupted(); });
    for (const auto& tensor : source_->index().tensors) summary_.tensor_bytes += tensor.bytes();
    summary_.tensors = source_->index().tensors.size();
    summary_.values = source_->index().values.size();
    summary_.buffer_bytes = options_.common.max_memory_bytes / kBufferShare;
    const auto begin = std::chrono::steady_clock::now();
    if (summary_.format == "pt") {
      to_torch();
    } else {
      to_safetensors();
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    report(taken.count());
    return 0;
  }

 private:
  void select() {
    const auto& keys = options_.common.keys;
    if (keys.everything()) return;
    source_->keep([&](const std::string& key) { return keys.selects(key); });
    if (source_->index().order.empty()) {
      throw Error(ErrorCode::kNotFound,
                  formats::escape(options_.common.path) + ": no key matches the selection");
    }
  }

  // The object to be written.
  formats::Value root() const {
    auto tree = source_->tree();
    if (!tree) return formats::nested_state_dict(*source_);
    if (options_.common.keys.everything()) return *tree;
    return formats::pruned(
        *tree, [&](const std::string& key) { return options_.common.keys.selects(key); });
  }

  void to_torch() {
    if (options_.max_shard_bytes) {
      throw Error(ErrorCode::kUsage,
                  "--max-shard-size splits safetensors; a torch.save file is one file");
    }
    const formats::Value object = root();
    check_globals(object, options_.common);
    formats::TorchSaveWriter writer(*source_, object);
    const std::uint64_t bytes = writer.file_bytes();
    summary_.files = {{fs::path(options_.destination).filename(), bytes}};
    if (options_.dry_run) return;
    check_free(bytes);
    formats::AtomicFile output(options_.destination, {options_.force, options_.sync});
    output.file().reserve(bytes);
    const auto result = copy(writer.pieces(output.file()));
    writer.finish(output.file(), result.crcs);
    source_->check_unchanged();
    output.commit();
  }

  void to_safetensors() {
    refuse_values();
    if (source_->index().tensors.empty()) {
      throw Error(ErrorCode::kUnsupported,
                  formats::escape(options_.common.path) +
                      ": holds no tensor, and safetensors holds tensors alone");
    }
    formats::safetensors::Writer writer(*source_, {options_.max_shard_bytes});
    summary_.tied = writer.tied();
    for (const auto& file : writer.files()) summary_.files.push_back({file.name, file.bytes});
    if (!options_.max_shard_bytes) {
      summary_.files[0].name = fs::path(options_.destination).filename();
      if (options_.dry_run) return;
      check_free(summary_.bytes());
      formats::AtomicFile output(options_.destination, {options_.force, options_.sync});
      output.file().reserve(summary_.bytes());
      write(writer, {&output.file()});
      output.commit();
      return;
    }
    summary_.files.push_back({"model.safetensors.index.json", writer.index().size()});
    if (options_.dry_run) return;
    check_free(summary_.bytes());
    formats::AtomicDirectory output(options_.destination, {options_.force, options_.sync});
    std::vector<formats::OutputFile*> files;
    for (const auto& file : writer.files()) {
      files.push_back(&output.add_file(file.name));
      files.back()->reserve(file.bytes);
    }
    write(writer, files);
    output.add_file("model.safetensors.index.json")
        .write_at(0, std::as_bytes(std::span(writer.index())));
    output.commit();
  }

  void write(formats::safetensors::Writer& writer, const std::vector<formats::OutputFile*>& files) {
    copy(writer.pieces(files));
    writer.finish(files);
    source_->check_unchanged();
  }

  // safetensors files hold tensors alone.
  void refuse_values() {
    const auto& values = source_->index().values;
    if (values.empty()) return;
    if (!options_.drop_values) {
      throw Error(
          ErrorCode::kUnsupported,
          cat(formats::escape(options_.common.path), ": ", formats::quote(values[0].key, 200),
              values.size() > 1 ? cat(" and ", values.size() - 1, " more") : std::string(),
              values.size() > 1 ? " are no tensors" : " is no tensor",
              ", and safetensors holds tensors alone; --drop-values leaves them out, --keys "
              "chooses"));
    }
    summary_.dropped_values = values.size();
    summary_.values = 0;
  }

  void check_free(std::uint64_t bytes) const {
    const fs::path above = fs::absolute(options_.destination).lexically_normal().parent_path();
    const std::uint64_t free = formats::free_bytes(above);
    if (free < bytes) {
      throw Error(ErrorCode::kNoSpace, cat(formats::escape(options_.destination), ": needs ",
                                           formats::human_bytes(bytes), ", only ",
                                           formats::human_bytes(free), " are free"));
    }
  }

  formats::CopyResult copy(const std::vector<formats::TargetPiece>& pieces) {
    Progress progress(streams_.err, streams_.show_progress, "consolidate", summary_.tensor_bytes);
    formats::CopyOptions options;
    options.threads = options_.common.threads;
    options.max_buffer_bytes = summary_.buffer_bytes;
    options.on_progress = [&](std::uint64_t bytes) { progress.update(bytes); };
    options.cancelled = [] { return formats::interrupted(); };
    auto result = formats::copy_pieces(pieces, options);
    summary_.unchecked_bytes = result.unchecked_bytes;
    return result;
  }

  void report(double seconds) const {
    if (options_.common.json) {
      report_json(seconds);
    } else if (options_.dry_run || !options_.common.quiet) {
      report_text(seconds);
    }
  }

  void report_json(double seconds) const {
    formats::Json::Array files;
    for (const OutputFileInfo& file : summary_.files) {
      files.push_back(formats::Json::Object{{"name", file.name}, {"bytes", file.bytes}});
    }
    formats::Json::Object tied;
    for (const auto& [name, kept] : summary_.tied) tied.emplace_back(name, kept);
    formats::Json::Object object;
    object.emplace_back("schema", "fsdp-ckpt/consolidate/1");
    object.emplace_back("path", options_.common.path);
    object.emplace_back("output", options_.destination);
    object.emplace_back("format", summary_.format);
    object.emplace_back("dry_run", options_.dry_run);
    object.emplace_back("files", std::move(files));
    object.emplace_back("tensors", std::uint64_t{summary_.tensors});
    object.emplace_back("values", std::uint64_t{summary_.values});
    object.emplace_back("dropped_values", std::uint64_t{summary_.dropped_values});
    object.emplace_back("tied", std::move(tied));
    object.emplace_back("bytes", summary_.bytes());
    object.emplace_back("tensor_bytes", summary_.tensor_bytes);
    object.emplace_back("buffer_bytes", summary_.buffer_bytes);
    if (options_.dry_run) {
      object.emplace_back("free_bytes", free_here());
    } else {
      object.emplace_back("unchecked_bytes", summary_.unchecked_bytes);
      object.emplace_back("seconds", seconds);
    }
    streams_.out << formats::to_text(formats::Json(std::move(object)), 1) << '\n';
  }

  std::uint64_t free_here() const {
    return formats::free_bytes(fs::absolute(options_.destination).lexically_normal().parent_path());
  }

  void report_text(double seconds) const {
    std::ostream& out = streams_.out;
    const std::string contents = cat(
        formats::group_digits(summary_.tensors), summary_.tensors == 1 ? " tensor" : " tensors",
        ", ", formats::group_digits(summary_.values), summary_.values == 1 ? " value" : " values",
        ", ", formats::human_bytes(summary_.bytes()));
    const std::string destination = formats::escape(options_.destination);
    for (const auto& [name, kept] : summary_.tied) {
      out << "tied: " << formats::quote(name, 200) << " is " << formats::quote(kept, 200)
          << "; its name is in the file's metadata\n";
    }
    if (summary_.dropped_values != 0)
      out << "left out: " << summary_.dropped_values << " values that are no tensors\n";
    if (options_.dry_run) {
      out << "would read " << source_->description().path << ": "
          << formats::human_bytes(summary_.tensor_bytes) << " of tensors, through "
          << formats::human_bytes(summary_.buffer_bytes) << " of buffers at most\n";
      out << "would write " << destination << ": " << contents << "; "
          << formats::human_bytes(free_here()) << " free\n";
      if (summary_.files.size() > 1) {
        for (const OutputFileInfo& file : summary_.files) {
          out << "  " << formats::escape(file.name) << "  " << formats::human_bytes(file.bytes)
              << '\n';
        }
      }
      return;
    }
    out << destination << ": " << contents;
    if (summary_.files.size() > 1) out << " in " << summary_.files.size() << " files";
    if (summary_.unchecked_bytes == 0) {
      out << ", all data matched its CRC-32";
    } else {
      out << ", " << formats::human_bytes(summary_.unchecked_bytes) << " carried no checksum";
    }
    const double rate = seconds > 0 ? static_cast<double>(summary_.bytes()) / seconds : 0;
    // Small outputs take no time worth telling.
    if (seconds > 1) out << ", " << formats::human_bytes(static_cast<std::uint64_t>(rate)) << "/s";
    out << '\n';
  }

  const ConsolidateOptions& options_;
  const Streams& streams_;
  Summary summary_;
  std::unique_ptr<Checkpoint> source_;
};

class ConsolidateVerb : public Verb {
 public:
  std::string name() const override { return "consolidate"; }
  std::string description() const override {
    return "Join a sharded checkpoint into one full state dict";
  }
  std::vector<std::string> examples() const override {
    return {"fsdp-ckpt consolidate step-400 full.pt",
            "fsdp-ckpt consolidate step-400 hf/ --max-shard-size 5GB -k 'model.**'"};
  }
  void declare(OptionSet& options) override {
    ConsolidateOptions& o = options_;
    options.positional("OUT", o.destination, "File to write, or folder with --max-shard-size",
                       true);
    options.choice("--to", o.format, {"pt", "safetensors"}, "FORMAT",
                   "pt or safetensors; by the suffix of OUT if not given");
    options.size("--max-shard-size", o.max_shard_bytes,
                 "safetensors: a folder of files of at most SIZE, with an index");
    options.flag("--drop-values", o.drop_values, "safetensors: leave out what is no tensor");
    options.flag("-n,--dry-run", o.dry_run,
                 "Say what would be read and written, and write nothing");
    options.flag("--force", o.force, "Replace OUT where it exists");
    options.negative_flag("--no-sync", o.sync,
                          "Do not wait until the output is safe from a power cut");
  }
  int run(const CommonOptions& common, const Streams& streams) override {
    options_.common = common;
    return Consolidation(options_, streams).run();
  }

 private:
  ConsolidateOptions options_;
};

}  // namespace

std::unique_ptr<Verb> make_consolidate() {
  return std::make_unique<ConsolidateVerb>();
}

}  // namespace fsdp::cli
