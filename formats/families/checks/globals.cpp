// SPDX-License-Identifier: Apache-2.0
#include "formats/families/checks/globals.h"

#include <algorithm>
#include <map>
#include <utility>

#include "formats/bytes/base/error.h"
#include "formats/bytes/base/text.h"
#include "formats/bytes/files/file.h"
#include "formats/bytes/store/place.h"
#include "formats/bytes/store/snapshot.h"
#include "formats/families/dcp/checkpoint.h"
#include "formats/families/dcp/item.h"
#include "formats/families/dcp/names.h"
#include "formats/families/hdf5/data.h"
#include "formats/families/hdf5/hdf5.h"
#include "formats/families/torch/pickle_search.h"
#include "formats/state/checkpoint/file_pool.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

// Trainers keep model, optimizer and other state a level or two below a step's folder.
constexpr int kMaxFolderDepth = 4;
// More findings than this add no information.
constexpr std::size_t kMaxFindings = 1000;

using Name = std::pair<std::string, std::string>;  // module, name

class Scanner {
 public:
  explicit Scanner(const GlobalScanOptions& options) : options_(options) {}

  void folder(const fs::path& path, const std::string& inside, int depth) {
    const Listing listing(path);
    const auto& directory = listing.folder;
    std::set<std::string> done;  // files that dcp_folder read
    if (dcp::is_dcp_folder(listing)) dcp_folder(listing, inside, done);
    for (const std::string& name : listing.names) {
      check_cancelled();
      const std::string shown = inside + name;
      if (directory->is_folder(name)) {
        if (kind_of_place_itself(path / name) != PlaceKind::kFolder) {
          unread(shown, {}, Error(ErrorCode::kNotRegular, "is a link to a folder; not followed"));
        } else if (depth == kMaxFolderDepth) {
          unread(
              shown, {},
              Error(ErrorCode::kLimitDepth, "is nested too deep; examine this folder by itself"));
        } else {
          folder(path / name, shown + "/", depth + 1);
        }
        continue;
      }
      if (done.contains(name)) continue;
      try {
        const auto opened = directory->open_member_if_present(name);
        if (opened == nullptr) continue;
        const bool is_data = dcp::rank_of_data_file(name).has_value();
        file(opened, shown, is_data ? PickleSearch::kData : PickleSearch::kFile);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kInterrupted) throw;
        unread(shown, {}, error);
      }
    }
  }

  void file(const std::shared_ptr<const File>& opened, const std::string& shown,
            PickleSearch search) {
    if (hdf5::looks_like_hdf5(*opened)) return hdf5_file(opened, shown);
    look(opened, shown, {}, search);
  }

  GlobalScan result() {
    GlobalScan scan;
    for (auto& [name, use] : uses_) scan.globals.push_back(std::move(use));
    std::ranges::stable_sort(scan.globals,
                             [](const auto& a, const auto& b) { return a.status < b.status; });
    scan.pickles = pickles_;
    scan.findings = std::move(findings_);
    return scan;
  }

 private:
  void check_cancelled() const {
    if (options_.cancelled && options_.cancelled())
      throw Error(ErrorCode::kInterrupted, "interrupted");
  }

  void unread(const std::string& file, const std::string& key, const Error& error) {
    if (findings_.size() >= kMaxFindings) return;
    findings_.push_back({.code = error.code(),
                         .message = error.what(),
                         .file = file,
                         .key = key,
                         .hint = error.hint()});
  }

  void note(const NameScanner& scanner, const std::string& file, const std::string& where) {
    ++pickles_;
    for (const ScannedName& scanned : scanner.names()) {
      const GlobalUse::Status status =
          scanned.status == NameStatus::kPlain     ? GlobalUse::Status::kKnown
          : scanned.status == NameStatus::kAllowed ? GlobalUse::Status::kAllowed
                                                   : GlobalUse::Status::kUnknown;
      if (status == GlobalUse::Status::kUnknown) unknown_.insert(scanned.name.dotted());
      const auto [at, fresh] = uses_.try_emplace(Name{scanned.name.module, scanned.name.name});
      GlobalUse& use = at->second;
      if (fresh) use = {scanned.name.module, scanned.name.name, status, 0, file, where};
      ++use.pickles;
      if (status < use.status) {
        use.status = status;
        use.file = file;
        use.where = where;
      }
    }
  }

  // `key`: of the item that the bytes belong to.
  void look(const std::shared_ptr<const ByteSource>& source, const std::string& shown,
            const std::string& key, PickleSearch search) {
    const auto place_of = [&](const std::string& place) { return key.empty() ? place : key; };
    search_pickles(source, {options_.allowed, search, options_.storages},
                   {.found =
                        [&](const NameScanner& scanner, const std::string& place) {
                          check_cancelled();
                          note(scanner, shown, place_of(place));
                        },
                    .unread =
                        [&](const Error& error, const std::string& place) {
                          if (search != PickleSearch::kRest || options_.unread_rest)
                            unread(shown, place_of(place), error);
                        }});
  }

  // Scans the state dict that fsdp-ckpt keeps beside the datasets.
  void hdf5_file(const std::shared_ptr<const File>& opened, const std::string& shown) {
    const std::vector<std::byte> pickle = hdf5::content_pickle(opened);
    if (pickle.empty()) return;
    const auto source = std::make_shared<MemorySource>(pickle);
    look(source, shown, "/.fsdp/content", PickleSearch::kPickle);
  }

  void dcp_folder(const Listing& listing, const std::string& inside, std::set<std::string>& done) {
    for (const std::string& name : listing.names) {
      if (name != dcp::kMetadataName && !dcp::rank_of_local_metadata(name)) continue;
      done.insert(name);
      try {
        look(listing.folder->open_member(name), inside + name, {}, PickleSearch::kPickle);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kInterrupted) throw;
        unread(inside + name, {}, error);
      }
    }
    // Allows the unknown names too: the tables of the metadata tell where the archives lie.
    std::set<std::string> allowed = options_.allowed;
    allowed.insert(unknown_.begin(), unknown_.end());
    std::unique_ptr<StoredCheckpoint> checkpoint;
    try {
      checkpoint = dcp::open_dcp(listing.path(), allowed);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInterrupted) throw;
      // Data files are examined without the metadata.
      const bool central = listing.has(dcp::kMetadataName);
      unread(inside + std::string(central ? dcp::kMetadataName : "*.metadata"), {},
             error.in("does not say where items lie"));
      return;
    }
    items(checkpoint->index(), *listing.folder, inside, done);
  }

  using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // begin, end

  void items(Index index, const Folder& directory, const std::string& inside,
             std::set<std::string>& done) {
    FilePool pool(directory);
    pool.examine(index.files);
    Spill spill;
    std::vector<Ranges> covered(index.files.size());
    const auto look_into = [&](const std::string& key, const Location& location) {
      check_cancelled();
      covered[location.file].emplace_back(location.offset, location.offset + location.length);
      if (options_.selects && !options_.selects(key)) return;
      const std::string& name = index.files[location.file].name;
      if (dcp::is_state_file(name)) return;  // a file of its own
      try {
        const dcp::Item item = dcp::item_bytes(pool.get(location.file), location,
                                               index.transforms[location.transform], spill);
        look(item.stream, inside + name, key, PickleSearch::kFile);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kInterrupted) throw;
        unread(inside + name, key, error);
      }
    };
    for (const TensorEntry& tensor : index.tensors) {
      for (std::size_t c = 0; c < tensor.chunks.size(); ++c)
        look_into(tensor.key, tensor.chunks.location(c));
    }
    std::set<std::pair<std::uint32_t, std::uint64_t>> shared;  // file, byte
    for (const ValueEntry& value : index.values) {
      const Location& at = value.location;
      if (options_.selects && !options_.selects(value.key)) continue;
      if (!value.member || shared.emplace(at.file, at.offset).second) look_into(value.key, at);
    }
    for (std::uint32_t f = 0; f < index.files.size(); ++f) {
      const FileEntry& file = index.files[f];
      if (!dcp::rank_of_data_file(file.name) || !file.bytes) continue;
      done.insert(file.name);
      if (!options_.selects) uncovered(pool.get(f), inside + file.name, std::move(covered[f]));
    }
  }

  // Scans the bytes of a data file that belong to no item.
  void uncovered(const std::shared_ptr<const File>& file, const std::string& shown,
                 Ranges covered) {
    covered.emplace_back(file->size(), file->size());
    std::ranges::sort(covered);
    std::uint64_t at = 0;
    for (const auto& [begin, end] : covered) {
      if (begin > at) {
        look(std::make_shared<SourceRange>(file, at, std::min(begin, file->size()) - at), shown,
             cat("bytes ", at, " to ", begin, ", which belong to no item"), PickleSearch::kRest);
      }
      at = std::max(at, std::min(end, file->size()));
    }
  }

  const GlobalScanOptions& options_;
  std::map<Name, GlobalUse> uses_;
  std::set<std::string> unknown_;
  std::uint64_t pickles_ = 0;
  Findings findings_;
};

}  // namespace

GlobalScan scan_globals(const fs::path& path, const GlobalScanOptions& options) {
  Scanner scanner(options);
  fs::path at = path;
  const std::string name = path.filename();
  const fs::path parent = folder_of_place(path);
  // The metadata or one data file of a folder stands for the folder.
  const bool is_data = dcp::rank_of_data_file(name).has_value();
  if (name == dcp::kMetadataName || (is_data && dcp::is_dcp_folder(Listing(parent)))) at = parent;
  const StoreSession session;
  const PlaceKind kind = kind_of_place(at);
  if (kind == PlaceKind::kFolder) {
    scanner.folder(at, {}, 0);
  } else if (kind != PlaceKind::kNothing) {
    scanner.file(file_at(at), at.filename(), is_data ? PickleSearch::kData : PickleSearch::kFile);
  }
  return scanner.result();
}

void check_output_names(const std::filesystem::path& output, const std::string& shown,
                        const std::set<std::string>& allowed,
                        const std::function<bool()>& cancelled) {
  // The scan of a missing output would find nothing.
  if (!std::filesystem::exists(output))
    throw Error(ErrorCode::kNotFound, escape(shown) + ": cannot be read back");
  const bool is_folder = std::filesystem::is_directory(output);
  // Bytes that an edit left behind in a shared file are never loaded, and may be compressed.
  const GlobalScan scan = scan_globals(
      output,
      {.allowed = allowed, .cancelled = cancelled, .storages = false, .unread_rest = false});
  const auto place = [&](const std::string& file, const std::string& where) {
    std::string text = escape(shown);
    if (is_folder) text += ": " + escape(file);
    if (!where.empty()) text += ": " + quote(where, 200);
    return text;
  };
  for (const GlobalUse& use : scan.globals) {
    if (use.status != GlobalUse::Status::kUnknown) continue;
    const std::string name = use.module + "." + use.name;
    throw Error(ErrorCode::kGlobal,
                cat(place(use.file, use.where), ": would refer to ", quote(name),
                    ", which is not known to be plain data; nothing was written"),
                {Remedy::kAllowGlobal, name});
  }
  if (scan.findings.empty()) return;
  const Finding& finding = scan.findings.front();
  throw Error(
      finding.code,
      cat(place(finding.file, finding.key),
          ": the names in its pickles cannot be read, so nothing was written: ", finding.message));
}

}  // namespace fsdp::formats
