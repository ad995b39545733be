// SPDX-License-Identifier: Apache-2.0
#include "formats/layout/globals.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "formats/base/error.h"
#include "formats/base/file.h"
#include "formats/base/text.h"
#include "formats/container/pickle_machine.h"
#include "formats/container/zip_reader.h"
#include "formats/layout/dcp.h"
#include "formats/layout/dcp_item.h"
#include "formats/layout/dcp_names.h"
#include "formats/layout/dcp_tables.h"
#include "formats/layout/file_pool.h"
#include "formats/layout/torch_file.h"
#include "formats/layout/torch_globals.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

// Trainers keep model, optimizer and the rest a level or two below a step's folder.
constexpr int kMaxFolderDepth = 4;
// A record that is one pickle is read as a whole where it is compressed.
constexpr std::uint64_t kMaxInflatedPickle = 1U << 30U;
// A legacy torch.save file: magic number, protocol, system info, object, storage keys.
constexpr int kLegacyPickles = 5;
// Findings beyond these say nothing new.
constexpr std::size_t kMaxFindings = 1000;

using Name = std::pair<std::string, std::string>;  // module, name

// Takes note of the names, and folds what a metadata file has millions of.
class RecordingHost : public PickleHost {
 public:
  std::int32_t global(std::string_view module, std::string_view name) override {
    names_.emplace(module, name);
    const bool folded = module.starts_with("torch.distributed.checkpoint.") ||
                        module.starts_with("torch.distributed._shard.checkpoint.") ||
                        (module == "torch" && name == "Size");
    return folded ? kFolded : -1;
  }
  Value reduce(const Value& callable, Value args) override {
    if (is_folded(callable)) return Value::opaque(0, 0);
    const GlobalName* name = callable.as_global();
    if (name != nullptr && name->name == "getattr" && !is_sound_getattr(args))
      unsound_getattr_ = true;
    return PickleHost::reduce(callable, std::move(args));
  }
  Value new_object(const Value& cls, Value args) override {
    if (is_folded(cls)) return Value::opaque(0, serial_++);
    return PickleHost::new_object(cls, std::move(args));
  }
  Value build(Value object, Value state, bool shared) override {
    if (object.kind() == ValueKind::kOpaque) return object;
    return PickleHost::build(std::move(object), std::move(state), shared);
  }
  // A storage: nothing but its class is of interest, and that was named already.
  Value persistent_id(Value /*id*/) override { return Value::opaque(1, serial_++); }

  const std::set<Name>& names() const { return names_; }
  // A member was fetched that is no public one of a class we know.
  bool unsound_getattr() const { return unsound_getattr_; }

 private:
  static constexpr std::int32_t kFolded = 1;
  static bool is_folded(const Value& value) {
    return value.as_global() != nullptr && value.global_tag() == kFolded;
  }
  static bool is_sound_getattr(const Value& args) {
    const auto items = args.items();
    const GlobalName* cls = items.size() == 2 ? items[0].as_global() : nullptr;
    const std::string* member = items.size() == 2 ? items[1].as_string() : nullptr;
    return cls != nullptr && member != nullptr && !member->starts_with('_') &&
           (known_global(cls->module, cls->name) != TorchGlobal::kUnknown ||
            dcp::is_known_global(cls->module, cls->name));
  }
  std::set<Name> names_;
  bool unsound_getattr_ = false;
  std::uint64_t serial_ = 0;
};

class Scanner {
 public:
  explicit Scanner(const GlobalScanOptions& options) : options_(options) {}

  void folder(const fs::path& path, const std::string& inside, int depth) {
    const Directory directory = Directory::open(path);
    if (dcp::is_dcp_folder(path)) dcp_folder(path, directory, inside);
    for (const std::string& name : directory.list()) {
      check_cancelled();
      const std::string shown = inside + name;
      if (directory.is_directory(name)) {
        if (fs::is_symlink(path / name)) {
          unread(shown, {}, Error(ErrorCode::kNotRegular, "is a link to a folder; not followed"));
        } else if (depth == kMaxFolderDepth) {
          unread(shown, {}, Error(ErrorCode::kLimitDepth, "lies too deep; name it itself"));
        } else {
          folder(path / name, shown + "/", depth + 1);
        }
        continue;
      }
      if (dcp::rank_of_data_file(name) || name == dcp::kMetadataName ||
          dcp::rank_of_local_metadata(name)) {
        continue;  // dcp_folder read them
      }
      try {
        if (const auto file = directory.open_member_if_present(name)) any_file(*file, shown);
      } catch (const Error& error) {
        unread(shown, {}, error);
      }
    }
  }

  // A torch.save file, a bare pickle, or nothing with pickles in it.
  void any_file(const ByteSource& file, const std::string& shown) {
    if (file.size() == 0) return;
    switch (sniff_torch_stream(file)) {
      case TorchStream::kZip:
        archive(file, shown, {});
        return;
      case TorchStream::kLegacy:
        legacy(file, shown, {});
        return;
      case TorchStream::kTar:
        unread(shown, {}, Error(ErrorCode::kUnsupported, "is a tar of PyTorch 0.1.10 or before"));
        return;
      case TorchStream::kOther:
        break;
    }
    // PROTO of protocol 2 to 5, and STOP as the last byte.
    std::array<std::byte, 2> start{};
    std::array<std::byte, 1> end{};
    if (file.size() < 4) return;
    file.read_at(0, start);
    file.read_at(file.size() - 1, end);
    const auto protocol = std::to_integer<int>(start[1]);
    if (start[0] == std::byte{0x80} && protocol >= 2 && protocol <= 5 && end[0] == std::byte{'.'})
      pickle(file, shown, {}, false);
  }

  GlobalScan result() {
    GlobalScan scan;
    for (auto& [name, use] : uses_) scan.globals.push_back(std::move(use));
    std::stable_sort(scan.globals.begin(), scan.globals.end(),
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
    findings_.push_back(
        {.code = error.code(), .message = error.what(), .file = file, .key = key, .bytes = {}});
  }

  void note(const RecordingHost& host, const std::string& file, const std::string& where,
            bool metadata) {
    ++pickles_;
    for (const auto& [module, name] : host.names()) {
      const std::string dotted = module + "." + name;
      GlobalUse::Status status = GlobalUse::Status::kUnknown;
      const bool known = metadata ? dcp::is_known_global(module, name)
                                  : known_global(module, name) != TorchGlobal::kUnknown;
      if (known && !(name == "getattr" && host.unsound_getattr())) {
        status = GlobalUse::Status::kKnown;
      } else if (options_.allowed.contains(dotted)) {
        status = GlobalUse::Status::kAllowed;
      } else {
        unknown_.insert(dotted);
      }
      const auto [at, fresh] = uses_.try_emplace(Name{module, name});
      GlobalUse& use = at->second;
      if (fresh) use = {module, name, status, 0, file, where};
      ++use.pickles;
      if (status < use.status) {
        use.status = status;
        use.file = file;
        use.where = where;
      }
    }
  }

  // Names are noted also of a pickle that ends in an error: they are what it was up to.
  void pickle(const ByteSource& source, const std::string& file, const std::string& where,
              bool metadata) {
    RecordingHost host;
    try {
      read_pickle(source, host);
    } catch (const Error& error) {
      unread(file, where, error);
    }
    note(host, file, where, metadata);
  }

  void legacy(const ByteSource& source, const std::string& file, const std::string& where) {
    RecordingHost host;
    try {
      std::uint64_t at = 0;
      for (int i = 0; i < kLegacyPickles; ++i) read_pickle_prefix(source, at, host);
    } catch (const Error& error) {
      unread(file, where, error);
    }
    note(host, file, where, false);
  }

  // Every record of an archive that is a pickle by its name.
  void archive(const ByteSource& source, const std::string& file, const std::string& where) {
    try {
      const ZipReader zip(source);
      for (const ZipEntry& entry : zip.entries()) {
        if (!entry.name.ends_with(".pkl")) continue;
        const std::string record = where.empty() ? "record " + entry.name : where;
        const SourceRange stored(
            std::shared_ptr<const ByteSource>(&source, [](const ByteSource*) {}), entry.data_offset,
            entry.compressed_bytes);
        if (!entry.deflated) {
          pickle(stored, file, record, false);
          continue;
        }
        if (entry.uncompressed_bytes > kMaxInflatedPickle) {
          throw Error(ErrorCode::kLimitSize,
                      cat("record ", quote(entry.name), " has ", entry.uncompressed_bytes,
                          " bytes, at most ", kMaxInflatedPickle));
        }
        std::vector<std::byte> bytes;
        inflate(stored, entry.uncompressed_bytes, [&](std::span<const std::byte> part) {
          bytes.insert(bytes.end(), part.begin(), part.end());
        });
        pickle(MemorySource(bytes), file, record, false);
      }
    } catch (const Error& error) {
      unread(file, where, error);
    }
  }

  void dcp_folder(const fs::path& path, const Directory& directory, const std::string& inside) {
    bool central = false;
    for (const std::string& name : directory.list()) central |= name == dcp::kMetadataName;
    for (const std::string& name : directory.list()) {
      if (central ? name != dcp::kMetadataName : !dcp::rank_of_local_metadata(name)) continue;
      try {
        pickle(*directory.open_member(name), inside + name, {}, true);
      } catch (const Error& error) {
        unread(inside + name, {}, error);
      }
    }
    // Whatever the metadata name, their tables tell where the archives lie.
    std::set<std::string> allowed = options_.allowed;
    allowed.insert(unknown_.begin(), unknown_.end());
    std::unique_ptr<Checkpoint> checkpoint;
    try {
      checkpoint = dcp::open_dcp(path, allowed);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInterrupted) throw;
      unread(inside + "*.distcp", {}, Error(error.code(), cat("not looked into: ", error.what())));
      return;
    }
    items(checkpoint->index(), directory, inside);
  }

  void items(Index index, const Directory& directory, const std::string& inside) {
    FilePool pool(directory);
    pool.examine(index.files);
    Spill spill;
    const auto look = [&](const std::string& key, const Location& location) {
      check_cancelled();
      if (options_.selects && !options_.selects(key)) return;
      const std::string& name = index.files[location.file].name;
      if (name == dcp::kLightningMetaName) return;  // a file of its own
      try {
        const dcp::Item item = dcp::item_bytes(pool.get(location.file), location,
                                               index.transforms[location.transform], spill);
        const EndsCache source(*item.stream, kTorchEndBytes, kTorchEndBytes);
        switch (sniff_torch_stream(source)) {
          case TorchStream::kZip:
            archive(source, inside + name, key);
            break;
          case TorchStream::kLegacy:
            legacy(source, inside + name, key);
            break;
          default:
            break;  // a safetensors blob has no pickle; anything else is verify's
        }
      } catch (const Error& error) {
        unread(inside + name, key, error);
      }
    };
    for (const TensorEntry& tensor : index.tensors) {
      for (std::size_t c = 0; c < tensor.chunks.size(); ++c)
        look(tensor.key, tensor.chunks.location(c));
    }
    for (const ValueEntry& value : index.values) look(value.key, value.location);
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
  // The metadata or one data file of a folder stands for the folder.
  if (name == dcp::kMetadataName || dcp::rank_of_data_file(name))
    at = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (fs::is_directory(at)) {
    scanner.folder(at, {}, 0);
  } else if (fs::exists(at)) {
    const auto file = File::open(at);
    scanner.any_file(*file, at.filename());
  }
  return scanner.result();
}

}  // namespace fsdp::formats
