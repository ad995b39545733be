// SPDX-License-Identifier: Apache-2.0
// One torch.save stream: a whole .pt file, or an item of a .distcp file.
// Source: torch/serialization.py and caffe2/serialize of PyTorch 1.6 to 2.15;
// docs/formats/torch_save.md.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/bytes/base/byte_source.h"
#include "formats/containers/names/unsafe_names.h"
#include "formats/containers/pickle/value.h"
#include "formats/containers/zip/reader.h"
#include "formats/state/checkpoint/spill.h"
#include "formats/state/content/tensor_value.h"
#include "formats/state/content/torch_globals.h"
#include "formats/state/model/chunk_data.h"
#include "formats/state/model/finding.h"

namespace fsdp::formats {

// The place of a storage's bytes, from the start of the stream.
struct StorageRecord {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // uncompressed
  std::uint64_t compressed_bytes = 0;
  std::optional<std::uint32_t> crc;
  bool deflated = false;
};

// Whether the local headers of an archive that was opened without them have been checked since.
struct UnreadHeaders {
  std::mutex mutex;
  bool checked = false;
};

struct TorchFile {
  Value root;                        // the saved object, storages as references
  std::vector<StorageRef> storages;  // in order of first reference
  std::unordered_map<std::string, StorageRecord> records;  // by storage key
  UnknownGlobals unknown_globals;
  bool cyclic = false;  // something in `root` contains itself (Note [cycles])
  bool big_endian = false;
  bool legacy = false;  // the magic-number format of PyTorch 0.4 to 1.5
  bool without_crcs = false;
  std::vector<ZipEntry> entries;          // of the archive; empty for legacy files
  std::shared_ptr<UnreadHeaders> unread;  // null: all were read when it was opened
};

enum class TorchStream { kZip, kLegacy, kTar, kOther };
// Returns the kind of `source`, judging by its first bytes.
TorchStream sniff_torch_stream(const ByteSource& source);

// A stream that holds one tensor has its headers within this many bytes of its ends.
inline constexpr std::uint64_t kTorchEndBytes = 4096;
// The end of an archive in a store, requested at once: the directory of some ten thousand records.
inline constexpr std::uint64_t kTorchDirectoryBytes = 1U << 20U;

// Reads everything but the storages.  Every small record is checked against its CRC; storage
// records must exist and have exactly the size given in the pickle.  `archive` is put into the
// storage references.  `reading`: how the headers of an archive are read.  Throws: kUnsupported
// (tar, TorchScript, unknown version), kRecordMissing, kRecordSize, kByteorder, kZipCrc, kZipName,
// kLimitSize; what ZipReader and the pickle machine throw.
TorchFile read_torch_file(const ByteSource& source, std::uint64_t archive = 0,
                          const ZipHeaderReading& reading = {});

// Does the same for an archive that was cut off (with_new_directory): the marks behind the data may
// be missing, and storages, which `records` then lacks.
TorchFile read_cut_torch_file(const ByteSource& source);

// The place of a stream in a checkpoint.
struct StreamPlace {
  std::shared_ptr<const ByteSource> source;
  std::string file;          // for messages
  std::uint64_t offset = 0;  // its first byte, in `source`
  std::uint64_t file_offset =
      0;  // if `source` is a decompressed copy: the item's offset in the file
};

// Returns the storage as a run of bytes; a deflated record is decompressed into `spill`.
// Throws: kStorage if the file has no such storage.
ChunkData storage_data(const TorchFile& file, const StorageRef& storage, const StreamPlace& place,
                       Spill& spill);

// Returns the elements of a dense tensor of the file.
ChunkData tensor_data(const TorchFile& file, const TensorValue& tensor, const StreamPlace& place,
                      Spill& spill);

// Reads entries of an archive through `buffer` and compares their CRCs.  Calls `bad` with the entry
// and the computed CRC, and `read`, if given, with each entry that is stored uncompressed; returns
// the bytes of the entries.  Requires: the archive has CRCs.
using EntryCrc = std::function<void(const ZipEntry&, std::uint32_t)>;
std::uint64_t check_entries(const ByteSource& source, std::span<const ZipEntry> entries,
                            std::span<std::byte> buffer, const EntryCrc& bad,
                            const EntryCrc& read = {});

// Returns the finding for an entry with another CRC.  `base`: the offset of the archive in the
// file.
Finding crc_finding(const ZipEntry& entry, std::uint32_t computed, std::string file,
                    std::string key, std::uint64_t base = 0);

// The torch.save format before zip archives: five pickles back to back, then the storages.
// Source: _legacy_save in torch/serialization.py.

// Reads everything but the storages, which carry no checksum.
// Requires: sniff_torch_stream said kLegacy.
// Throws: kUnsupported (protocol, byte order, views of storages), kRecordMissing, kRecordSize,
// kTrailing, kType; what the pickle machine throws.
TorchFile read_torch_legacy(const ByteSource& source, std::uint64_t archive);

}  // namespace fsdp::formats
