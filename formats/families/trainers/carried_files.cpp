// SPDX-License-Identifier: Apache-2.0
#include "formats/families/trainers/carried_files.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/json.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/checkpoint_names.h"
#include "formats/bytes/files/seal.h"
#include "formats/bytes/outputs/file_link.h"
#include "formats/families/checks/globals.h"
#include "formats/families/torch/stream.h"
#include "formats/families/torch/writer.h"
#include "formats/families/trainers/per_rank.h"
#include "formats/state/content/object_fields.h"
#include "formats/state/content/value_compare.h"

namespace fsdp::formats {
namespace {

// The most bytes of a JSON file that is read; real ones have a hundred.
constexpr std::uint64_t kMaxJsonBytes = 1U << 20U;

// Files of which each rank has its own.
struct FilesOfRanks {
  std::string_view before;  // the rank; "{}" stands for the number of ranks
  std::string_view suffix;
  std::string_view alone;  // the name if there is one rank; empty: as with several
  // What the file of a rank that did not exist holds: the members of this name, which are the same
  // on all ranks; empty: there is no such file; "*": everything, if all files are the same.
  std::string_view shared;
  bool needed;  // the loader does not start without the rank's file
};
constexpr std::array<FilesOfRanks, 4> kRankFiles = {{
    // Transformers: trainer.py, _load_rng_state
    {"rng_state_", ".pth", "rng_state.pth", "", false},
    // Accelerate: checkpointing.py, load_accelerator_state.  Without "step", ranks would accumulate
    // gradients over different steps.
    {"random_states_", ".pkl", "", "step", false},
    // verl: utils/checkpoint/fsdp_checkpoint_manager.py, checkpoint_handler.py
    {"extra_state_world_size_{}_rank_", ".pt", "", "lr_scheduler", true},
    {"data_", ".pt", "", "*", false},
}};

std::string rank_file_name(const FilesOfRanks& kind, std::int64_t rank, std::int64_t ranks) {
  if (ranks == 1 && !kind.alone.empty()) return std::string(kind.alone);
  std::string out(kind.before);
  const std::size_t place = out.find("{}");
  if (place != out.npos) out.replace(place, 2, std::to_string(ranks));
  return cat(out, rank, kind.suffix);
}

std::string json_text_in(const File& file) {
  if (file.size() > kMaxJsonBytes) {
    throw Error(ErrorCode::kLimitSize, cat("has ", file.size(), " bytes, at most ", kMaxJsonBytes));
  }
  std::string text(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

// Returns whether the files hold the same: torch.save writes the name of the file into it.
bool same_content(const File& a, const File& b) {
  if (a.size() == b.size() && crc_of(a) == crc_of(b)) return true;
  if (sniff_torch_stream(a) != TorchStream::kZip || sniff_torch_stream(b) != TorchStream::kZip)
    return false;
  const TorchFile in_a = read_torch_file(a);
  const TorchFile in_b = read_torch_file(b);
  return saved_alike(in_a, in_a.root, in_b, in_b.root);
}

class Carrier {
 public:
  Carrier(const Listing& listing, const CarryOptions& options)
      : listing_(listing), options_(options) {
    out_.folder = listing.folder;
  }

  CarriedFiles run() {
    for (const FilesOfRanks& kind : kRankFiles) add_ranks(kind);
    for (const std::string& name : listing_.folder->list_files()) {
      const std::string top = name.substr(0, name.find('/'));
      if (taken_.contains(name) || top.starts_with('.') || is_seal_name(top) ||
          !options_.wanted(top))
        continue;
      out_.seen.insert(name);
      add(name);
    }
    return std::move(out_);
  }

 private:
  using Opened = std::shared_ptr<const File>;

  // Returns the file if it may go along; else notes why not.
  Opened opened(const std::string& name) {
    const std::string base = name.substr(name.rfind('/') + 1);
    if (base.ends_with(".py") && !options_.programs.contains(name))
      return leave(name, "is left out: is code");
    if (!is_carried_name(base))
      return leave(name, "is left out: is not a kind of file that checkpoints have");
    Opened file;
    try {
      file = listing_.folder->open_member(name);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kPathEscape && error.code() != ErrorCode::kNotRegular) throw;
      return leave(name, "is left out: lies outside of the folder");
    }
    const GlobalScan scan = scan_globals(
        listing_.path() / name,
        {.allowed = options_.allowed_globals, .cancelled = [] { return interrupted(); }});
    if (!scan.findings.empty()) return leave(name, cat("is left out: ", scan.findings[0].message));
    if (scan.globals.empty() || scan.globals[0].status != GlobalUse::Status::kUnknown) return file;
    const std::string unknown = cat(scan.globals[0].module, ".", scan.globals[0].name);
    return leave(
        name, cat("is left out: the name ", quote(unknown), " in it is not known to be plain data"),
        {Remedy::kAllowGlobal, unknown});
  }

  // Notes what became of a file.  Returns nullptr.
  Opened leave(const std::string& name, std::string note, Hint hint = {}) {
    out_.notes.push_back({name, std::move(note), std::move(hint)});
    return nullptr;
  }

  void put(CarriedFile file, const std::string& name, std::optional<std::string> text = {}) {
    if (put_.insert(name).second) {
      file.name = name;
      file.text = std::move(text);
      out_.files.push_back(std::move(file));
    } else {
      leave(name, "is left out: its name is that of a file of another rank");
    }
  }

  void add(const std::string& name) {
    auto file = opened(name);
    if (file == nullptr) return;
    auto edited = name == "fsdp_config.json" ? with_world_size(*file) : std::nullopt;
    put(described(name, *file), name, std::move(edited));
  }

  static CarriedFile described(const std::string& source, const File& file) {
    return {.name = {}, .source = source, .bytes = file.size(), .identity = file.identity()};
  }

  // Returns the text with the new number of ranks, which verl's model_merger reads.
  std::optional<std::string> with_world_size(const File& file) const {
    const Json json =
        in_context([&] { return file.name(); }, [&] { return parse_json(json_text_in(file)); });
    const Json* const said = json.find("world_size");
    if (said == nullptr) return std::nullopt;
    if (said->as_int() == nullptr || *said->as_int() != options_.from_ranks) {
      throw Error(ErrorCode::kMismatch,
                  cat(file.name(), ": world_size: is ", to_text(*said),
                      ", but the files beside it are those of ", options_.from_ranks, " ranks"));
    }
    Json::Object edited = *json.as_object();
    for (auto& [key, value] : edited) {
      if (key == "world_size") value = Json(options_.to_ranks);
    }
    return to_text(Json(std::move(edited)), 4);
  }

  void add_ranks(const FilesOfRanks& kind) {
    std::vector<std::string> names = names_of(kind);
    if (names.empty()) return;
    taken_.insert(names.begin(), names.end());
    out_.seen.insert(names.begin(), names.end());
    std::vector<CarriedFile> files;
    for (const std::string& name : names) {
      if (const Opened file = opened(name)) {
        files.push_back(described(name, *file));
        continue;
      }
      if (kind.needed) {
        throw Error(ErrorCode::kGlobal,
                    cat(escape((listing_.path() / name).native()), ": ", out_.notes.back().note),
                    out_.notes.back().hint);
      }
      for (const std::string& other : names) {
        if (other != name) leave(other, cat("is left out like ", name));
      }
      return;
    }
    const auto from = static_cast<std::int64_t>(names.size());
    const std::int64_t to = options_.to_ranks;
    for (std::int64_t rank = 0; rank < std::min(from, to); ++rank)
      put(files[static_cast<std::size_t>(rank)], rank_file_name(kind, rank, to));
    for (std::int64_t rank = to; rank < from; ++rank)
      leave(names[static_cast<std::size_t>(rank)], "is left out: its rank exists no more");
    if (to > from) add_new_ranks(kind, files);
  }

  // Returns the names of the files of ranks 0, 1, ...
  std::vector<std::string> names_of(const FilesOfRanks& kind) {
    std::vector<std::string> names;
    const auto there = [&](const std::string& name) {
      return listing_.has(name) && options_.wanted(name);
    };
    const std::string alone(kind.alone);
    if (kind.before.find("{}") == kind.before.npos) {
      while (there(cat(kind.before, names.size(), kind.suffix)))
        names.push_back(cat(kind.before, names.size(), kind.suffix));
      if (alone.empty() || !there(alone)) return names;
      if (names.empty()) return {alone};
      taken_.insert(alone);
      leave(alone, "is left out: is of a job of one rank");
      return names;
    }
    const std::int64_t ranks = options_.from_ranks;
    std::int64_t missing = 0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      names.push_back(rank_file_name(kind, rank, ranks));
      if (!there(names.back())) ++missing;
    }
    if (missing == ranks) return {};
    if (missing != 0) {
      throw Error(ErrorCode::kShardMissing,
                  cat(escape(listing_.path().native()), ": has ", ranks - missing, " of the ",
                      ranks, " files from ", names.front(), " to ", names.back()));
    }
    return names;
  }

  // Adds what ranks that did not exist share with the others.
  void add_new_ranks(const FilesOfRanks& kind, const std::vector<CarriedFile>& files) {
    std::optional<std::string> bytes;
    std::string note = "is not there: this rank did not exist, and has no random state";
    const bool alike =
        kind.shared == "*" && std::ranges::all_of(files, [&](const CarriedFile& file) {
          return same_content(*member_of(files[0]), *member_of(file));
        });
    if (kind.shared == "*") {
      note = alike ? "is new: a copy of the other ranks' files, which are all the same"
                   : "is not there: this rank did not exist, and the others' files differ";
    } else if (!kind.shared.empty()) {
      bytes = shared_part(kind, files);
      if (bytes) {
        note = cat("is new: holds ", kind.shared,
                   ", which all ranks share; this rank did not exist, and has no random state");
      }
    }
    for (auto rank = static_cast<std::int64_t>(files.size()); rank < options_.to_ranks; ++rank) {
      const std::string name = rank_file_name(kind, rank, options_.to_ranks);
      if (bytes || alike) put(files[0], name, bytes);
      leave(name, note);
    }
  }

  // Returns a torch.save file with the shared members alone; nothing if a file has none.
  std::optional<std::string> shared_part(const FilesOfRanks& kind,
                                         const std::vector<CarriedFile>& files) const {
    std::optional<Value> shared;
    for (const CarriedFile& carried : files) {
      const Opened file = member_of(carried);
      const TorchFile torch = read_torch_file(*file);
      const Value* const value = member(torch.root, kind.shared);
      if (value == nullptr) {
        if (!kind.needed) return std::nullopt;
        throw Error(ErrorCode::kKey, cat(file->name(), ": has no ", quote(kind.shared)));
      }
      const ValueComparison compared = compare_values(shared.value_or(*value), *value);
      if (!compared.same || !compared.storages.empty()) {
        throw Error(
            ErrorCode::kMismatch,
            cat(file->name(), ": ", quote(kind.shared), compared.where,
                compared.same ? ": holds a tensor, which is not compared with that in "
                              : ": is not what it is in ",
                escape(files[0].source), "; a rank that did not exist has no value of its own"),
            {Remedy::kOtherLayout});
      }
      if (!shared) shared = *value;
    }
    return TorchSaveLayout(
               Value::dict({{Value::string(std::string(kind.shared)), std::move(*shared)}}))
        .encoded();
  }

  Opened member_of(const CarriedFile& file) const {
    return listing_.folder->open_member(file.source);
  }

  const Listing& listing_;
  const CarryOptions& options_;
  CarriedFiles out_;
  std::set<std::string> taken_;  // names that add_ranks has seen to
  std::set<std::string> put_;    // names of `out_`
};

}  // namespace

void CarriedFiles::plan(OutputPlan& plan) const {
  for (const CarriedFile& carried : files) {
    plan.files.push_back({carried.name, carried.text ? carried.text->size() : carried.bytes});
    plan.carried.push_back(carried.name);
  }
  plan.notes.insert(plan.notes.end(), notes.begin(), notes.end());
}

void CarriedFiles::write(AtomicFolder& output, bool sync) const {
  for (const CarriedFile& carried : files) {
    OutputFile& file = output.add_file(carried.name);
    if (carried.text) {
      file.write_at(0, std::as_bytes(std::span(*carried.text)));
    } else {
      const auto source = folder->open_member(carried.source);
      if (source->size() != carried.bytes || source->identity() != carried.identity)
        throw Error(ErrorCode::kChanged, cat(source->name(), ": is another file than before"));
      copy_bytes(*source, file, {});
      source->check_unchanged();
    }
    file.finish(sync);
  }
}

CarriedFiles carried_files(const Listing& folder, const CarryOptions& options) {
  return Carrier(folder, options).run();
}

bool is_carried_of_rank_0(std::string_view name, std::int64_t ranks) {
  return std::ranges::any_of(
      kRankFiles, [&](const FilesOfRanks& kind) { return name == rank_file_name(kind, 0, ranks); });
}

bool is_carried_name(std::string_view name) {
  return is_member_name(name) || is_description_name(name) || name == "latest_universal";
}

}  // namespace fsdp::formats
