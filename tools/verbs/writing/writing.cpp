// SPDX-License-Identifier: Apache-2.0
#include "tools/verbs/writing/writing.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <ostream>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/interrupt.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/outputs/new_folders.h"
#include "formats/bytes/store/store.h"
#include "formats/containers/names/unsafe_names.h"
#include "formats/families/checks/globals.h"
#include "formats/state/content/state_tree.h"
#include "tools/base/memory_budget.h"
#include "tools/base/placed.h"
#include "tools/base/progress.h"
#include "tools/base/reading.h"
#include "tools/base/remedy.h"

namespace fsdp::cli {
namespace {

namespace fs = std::filesystem;
using formats::cat;

// The most files that a dry run lists for users; --json lists all.
constexpr std::size_t kMaxListed = 100;
// The most files that a line names.
constexpr std::size_t kMaxOnLine = 10;

// Returns the free bytes where `destination` will be written.  Throws: kIo.
std::uint64_t free_bytes_at(const std::string& destination) {
  return formats::free_bytes(formats::existing_folder_above(destination));
}

struct Writing {
  const std::string& verb;
  const formats::Checkpoint& source;
  formats::Output& output;
  const WritingOptions& writing;
  const CommonOptions& common;
  const Streams& streams;
  ReportExtras extras;
  const formats::OutputPlan& plan = output.plan();
  std::uint64_t buffer_bytes = common.max_memory_bytes / kBufferShare;

  int run() {
    formats::CopyResult result;
    double seconds = 0;
    // A dry run shows users the plan before the error; --json prints only one object, here the
    // error.
    const bool plan_first = writing.dry_run && !common.json;
    if (!plan_first) check_free(writing.destination, plan.new_bytes());
    if (!writing.dry_run) {
      const auto begin = std::chrono::steady_clock::now();
      result = write();
      note_placed(writing.destination);
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    if (common.json) {
      report_json(result, seconds);
    } else if (writing.dry_run || !common.quiet) {
      report_text(result, seconds);
    }
    if (plan_first) check_free(writing.destination, plan.new_bytes());
    return 0;
  }

  formats::CopyResult write() {
    Progress progress(streams.err, streams.show_progress, verb, plan.tensor_bytes);
    formats::CopyOptions options;
    options.threads = common.threads;
    options.max_buffer_bytes = buffer_bytes;
    options.on_progress = [&](std::uint64_t bytes) { progress.update(bytes); };
    options.cancelled = [] { return formats::interrupted(); };
    options.team = common.team;
    options.journal = writing.journal.get();
    if (writing.journal->records()) identify_plan();
    return output.write(options);
  }

  // Adds the files of the output to the facts that decide about its bytes.
  void identify_plan() const {
    // Added after the words and the source, which explain better why sizes of files differ.
    common.identity->add_later([this](formats::PlanIdentity& identity) {
      identity.add("format", plan.format);
      for (const formats::PlannedFile& file : plan.files)
        identity.add(file.name, cat(file.bytes, " bytes"));
    });
  }

  void report_json(const formats::CopyResult& result, double seconds) {
    formats::Json::Array files;
    for (const formats::PlannedFile& file : plan.files) {
      formats::Json::Object entry{{"name", file.name}, {"bytes", file.bytes}};
      if (file.linked) entry.emplace_back("linked", true);
      files.push_back(std::move(entry));
    }
    formats::Json::Object tied;
    for (const auto& [name, kept] : plan.tied) tied.emplace_back(name, kept);
    formats::Json::Object object;
    object.emplace_back("schema", "fsdp-ckpt/" + verb + "/1");
    object.emplace_back("path", common.path);
    object.emplace_back("output", writing.destination);
    for (auto& member : extras.members) object.push_back(std::move(member));
    object.emplace_back("format", plan.format);
    object.emplace_back("dry_run", writing.dry_run);
    object.emplace_back("files", std::move(files));
    object.emplace_back("tensors", plan.tensors);
    object.emplace_back("values", plan.values);
    object.emplace_back("dropped_values", plan.dropped_values);
    object.emplace_back("tied", std::move(tied));
    if (!plan.carried.empty()) {
      object.emplace_back("carried",
                          formats::Json::Array(plan.carried.begin(), plan.carried.end()));
    }
    if (!plan.notes.empty()) object.emplace_back("notes", json_notes());
    object.emplace_back("bytes", plan.bytes());
    object.emplace_back("tensor_bytes", plan.tensor_bytes);
    object.emplace_back("buffer_bytes", buffer_bytes);
    if (writing.dry_run) {
      // A store does not report free space.
      if (!formats::is_url(writing.destination))
        object.emplace_back("free_bytes", free_bytes_at(writing.destination));
    } else {
      object.emplace_back("unchecked_bytes", result.unchecked_bytes);
      if (writing.resume) object.emplace_back("kept_bytes", result.kept_bytes);
      object.emplace_back("seconds", seconds);
    }
    streams.out << formats::to_text(formats::Json(std::move(object)), 1) << '\n';
  }

  void report_text(const formats::CopyResult& result, double seconds) const {
    std::ostream& out = streams.out;
    for (const auto& [name, kept] : plan.tied) {
      out << "tied: " << formats::quote(name, 200) << " is " << formats::quote(kept, 200)
          << "; its name is in the file's metadata\n";
    }
    if (plan.dropped_values != 0)
      out << "left out: " << plan.dropped_values << " values that are not tensors\n";
    for (const std::string& line : extras.lines) out << line << '\n';
    report_carried();
    const std::string contents =
        cat(counted(plan.tensors, "tensor"), ", ", counted(plan.values, "value"), ", ",
            formats::human_bytes(plan.bytes()));
    if (writing.dry_run) {
      report_plan(contents);
    } else {
      report_result(contents, result, seconds);
    }
  }

  formats::Json json_notes() const {
    formats::Json::Array notes;
    for (const formats::FileNote& note : plan.notes) {
      notes.push_back(
          formats::Json::Object{{"file", note.name}, {"note", note.note + remedy_text(note.hint)}});
    }
    return notes;
  }

  // Names the files that came along, and why others did not; those with the same note together.
  void report_carried() const {
    if (!plan.carried.empty()) {
      formats::SomeNames names(kMaxOnLine);
      for (const std::string& name : plan.carried) names.add(formats::escape(name));
      streams.out << "carried over: " << names.text() << '\n';
    }
    for (std::size_t i = 0; i < plan.notes.size();) {
      const formats::FileNote& first = plan.notes[i];
      formats::SomeNames names(kMaxOnLine);
      for (; i < plan.notes.size() && plan.notes[i].note == first.note; ++i)
        names.add(formats::escape(plan.notes[i].name));
      streams.out << names.text() << ": " << first.note << remedy_text(first.hint) << '\n';
    }
  }

  // Names the bytes on disk that source and output share.
  std::string shared_text() const {
    const std::uint64_t linked = plan.bytes() - plan.new_bytes();
    return linked == 0 ? std::string()
                       : ", " + formats::human_bytes(linked) + " of it shared with the source";
  }

  void report_plan(const std::string& contents) const {
    std::ostream& out = streams.out;
    out << "would read " << source.description().path << ": "
        << formats::human_bytes(plan.tensor_bytes) << " of tensors, through "
        << formats::human_bytes(buffer_bytes) << " of buffers at most\n";
    out << "would write " << formats::escape(writing.destination) << ": " << contents
        << shared_text();
    if (!formats::is_url(writing.destination)) {
      out << "; " << formats::human_bytes(free_bytes_at(writing.destination)) << " free";
    }
    out << '\n';
    if (plan.files.size() == 1) return;
    for (std::size_t i = 0; i < plan.files.size() && i < kMaxListed; ++i) {
      out << "  " << formats::escape(plan.files[i].name) << "  "
          << formats::human_bytes(plan.files[i].bytes) << (plan.files[i].linked ? "  linked" : "")
          << '\n';
    }
    if (plan.files.size() > kMaxListed)
      out << "  and " << plan.files.size() - kMaxListed << " more files\n";
  }

  void report_result(const std::string& contents, const formats::CopyResult& result,
                     double seconds) const {
    std::ostream& out = streams.out;
    out << formats::escape(writing.destination) << ": " << contents;
    if (plan.files.size() > 1) out << " in " << plan.files.size() << " files";
    out << shared_text();
    if (result.unchecked_bytes != 0) {
      out << ", " << formats::human_bytes(result.unchecked_bytes) << " carried no checksum";
    } else if (result.bytes != 0) {
      out << ", all data matched its " << checksum_name();
    }
    if (result.kept_bytes != 0)
      out << ", " << formats::human_bytes(result.kept_bytes) << " kept from an earlier run";
    const std::uint64_t written = plan.new_bytes() - result.kept_bytes;
    const double rate = seconds > 0 ? static_cast<double>(written) / seconds : 0;
    // The rate of a short run is not worth reporting.
    if (seconds > 1) out << ", " << formats::human_bytes(static_cast<std::uint64_t>(rate)) << "/s";
    out << '\n';
    if (extras.last) out << extras.last() << '\n';
  }

  std::string checksum_name() const {
    return source.description().format == "hdf5" ? "checksums" : "CRC-32";
  }
};

// URLs are compared as text: a store has neither links nor "..".
const char* relation_of_urls(std::string_view source, std::string_view destination) {
  const auto trimmed = [](std::string_view url) {
    return std::string(url.substr(0, url.find_last_not_of('/') + 1)) + "/";
  };
  const std::string from = trimmed(source);
  const std::string to = trimmed(destination);
  if (from == to) return "is";
  if (to.starts_with(from)) return "lies inside";
  return from.starts_with(to) ? "contains" : nullptr;
}

// Returns whether `inner` is `outer` or lies inside it.
bool lies_in(const fs::path& inner, const fs::path& outer) {
  fs::path at = inner;
  for (;;) {
    if (at == outer) return true;
    if (!at.has_relative_path() || at.parent_path() == at) return false;
    at = at.parent_path();
  }
}

const char* relation_of_paths(const std::string& source, const std::string& destination) {
  const fs::path from = fs::weakly_canonical(source);
  const fs::path to = fs::weakly_canonical(destination);
  if (from == to) return "is";
  if (lies_in(to, from)) return "lies inside";
  return lies_in(from, to) && fs::exists(to) ? "contains" : nullptr;
}

}  // namespace

formats::OutputOptions WritingOptions::output(const CommonOptions& common) const {
  formats::OutputOptions options;
  options.replace = force;
  options.sync = sync;
  options.seal = seal;
  options.before_commit = [destination = destination,
                           allowed = common.allowed_globals](const fs::path& temporary) {
    formats::check_output_names(temporary, destination, allowed,
                                [] { return formats::interrupted(); });
  };
  options.make_folders = true;
  options.team = common.team;
  if (resume && !sync) {
    throw Error(ErrorCode::kUsage,
                "--resume needs data that is safe on the disk, and --no-sync does not wait for "
                "that; give only one of them");
  }
  // A job on many machines may lose one of them, which its user cannot foresee.
  if (resume || (!common.team->alone() && sync)) {
    formats::RunJournal::Options how;
    how.asked = resume;
    how.team = common.team;
    if (const char* const bytes = std::getenv("FSDP_CKPT_EXTENT"))
      how.extent_bytes = formats::parse_size(bytes);
    journal = std::make_shared<formats::RunJournal>(common.identity, how);
  }
  options.journal = journal;
  return options;
}

void declare_writing(OptionSet& options, WritingOptions& writing, const std::string& out_help) {
  options.positional("OUT", writing.destination, out_help);
  declare_writing_options(options, writing);
}

void declare_writing_options(OptionSet& options, WritingOptions& writing) {
  options.add("--dry-run", &writing.dry_run);
  options.add("--force", &writing.force);
  options.add("--no-sync", &writing.sync).clears = true;
  options.add("--seal", &writing.seal);
}

void check_apart(const std::string& source, const std::string& destination) {
  const bool to_store = formats::is_url(destination);
  if (to_store && formats::store_of(destination) == nullptr) {
    throw Error(
        ErrorCode::kUnsupported,
        formats::escape(destination) + ": is a URL that cannot be written; name a local path");
  }
  if (to_store != formats::is_url(source)) return;
  const char* const relation =
      to_store ? relation_of_urls(source, destination) : relation_of_paths(source, destination);
  if (relation != nullptr) {
    throw Error(ErrorCode::kSamePath, cat(formats::escape(destination), ": ", relation,
                                          " the checkpoint being read; name another place"));
  }
}

void check_free(const std::string& destination, std::uint64_t needed) {
  if (formats::is_url(destination)) return;
  const std::uint64_t free = free_bytes_at(destination);
  if (free >= needed) return;
  throw Error(ErrorCode::kNoSpace,
              cat(formats::escape(destination), ": needs ", formats::human_bytes(needed), ", only ",
                  formats::human_bytes(free), " are free"));
}

void check_globals(const formats::Value& root, const CommonOptions& common) {
  // Most checkpoints have no such names, so places are searched only if there are some.
  formats::UnknownGlobals unsafe = formats::unknown_globals_in(root);
  std::erase_if(unsafe, [&](const auto& name) { return common.allowed_globals.contains(name); });
  if (unsafe.empty()) return;
  for (const formats::Leaf& leaf : formats::leaves_of(root)) {
    for (const std::string& name : formats::unknown_globals_in(leaf.value)) {
      if (!unsafe.contains(name)) continue;
      throw Error(
          ErrorCode::kGlobal,
          cat(formats::escape(common.path), ": ", formats::quote(leaf.key, 200), ": global ",
              formats::quote(name), " is not known to be plain data; leave it out with --exclude ",
              formats::quote(leaf.key, 200), ", or accept it with --allow-global ",
              formats::escape(name)));
    }
  }
  // The name is in a container itself: a key, a defaultdict's factory, an OrderedDict's state.
  throw Error(ErrorCode::kGlobal,
              cat(formats::escape(common.path), ": global ", formats::quote(*unsafe.begin()),
                  " is not known to be plain data; it is in a container's keys or state, which "
                  "--exclude cannot leave out; accept it with --allow-global ",
                  formats::escape(*unsafe.begin())));
}

int write_output(const std::string& verb, const formats::Checkpoint& source,
                 formats::Output& output, const WritingOptions& writing,
                 const CommonOptions& common, const Streams& streams, ReportExtras extras) {
  if (writing.seal) output.plan_seal();
  return Writing{verb, source, output, writing, common, streams, std::move(extras)}.run();
}

}  // namespace fsdp::cli
