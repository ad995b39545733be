// SPDX-License-Identifier: Apache-2.0
// The one exception of formats/ and tools/, and the codes that tell its kinds apart.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace fsdp {

// The kind of an error.  `code_name` spells each one in capitals (kZipCrc is "ZIP_CRC"). Scripts
// match on that name, so codes may be added but never renamed.
enum class ErrorCode {
  // The command line and the world around it.
  kUsage,
  kNotFound,
  kExists,
  kSamePath,
  kIo,
  kNoSpace,
  kBusy,
  kChanged,
  kInterrupted,
  kOutOfMemory,
  kUnsupported,
  kUnknownFormat,
  // Sizes that a file cannot justify.
  kEmpty,
  kTruncated,
  kTrailing,
  kLimitDepth,
  kLimitNodes,
  kLimitEntries,
  kLimitRatio,
  kLimitSize,
  kOverflow,
  // Pickle streams.
  kOpcode,
  kProto,
  kGlobal,
  kMemo,
  kReduce,
  kBuild,
  kType,
  kStack,
  kFrame,
  kIntRange,
  kUtf8,
  kName,
  kCycle,
  kKey,
  kPersid,
  kStorage,
  kTensorBounds,
  // Zip archives as torch.save writes them.
  kZipEocd,
  kZipFraming,
  kZip64,
  kZipMismatch,
  kZipOverlap,
  kZipDuplicate,
  kZipName,
  kZipCrc,
  kZipExtent,
  kZipPadding,
  kUnchecked,
  kRecordMissing,
  kRecordSize,
  kByteorder,
  // Distributed checkpoint folders.
  kNoMetadata,
  kNotRegular,
  kMetaType,
  kChunkMissing,
  kOrphan,
  kHole,
  kOverlap,
  kBounds,
  kRank,
  kDtype,
  kShape,
  kPathEscape,
  kPath,
  kShardMissing,
  kExtent,
  kExtentOverlap,
  kExtraFile,
  kVersion,
  // safetensors and JSON.
  kStHeader,
  kStJson,
  kStDuplicate,
  kStField,
  kStDtype,
  kStShape,
  kStOffsets,
  kStSize,
  kStMetadata,
  kJson,
  kJsonDepth,
  kIndex,
  // New names for the contents of a checkpoint.
  kRekeyCollision,
  kRekeyUnused,
  kRekeyAmbiguous,
  // Seals: the state of a checkpoint when it was written.
  kSeal,
  kSealMissing,
  kSealExtra,
  kSealMismatch,
  kUnsealed,
  kSharedChanged,
  kNewerData,
  // HDF5.
  kH5Open,
  kH5Link,
  kH5Type,
  kH5ReaderFailed,
  kH5Checksum,
};

// The name in brackets of an error line: kZipCrc -> "ZIP_CRC".
std::string_view code_name(ErrorCode code) noexcept;

// A failure to do what was asked.  The message reads `<path>: <container or key>: <symptom with the
// expected and the found value>[; <remedy>]`, lower case, no period.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }
  // The same error as seen from one level further out: "context: what()".
  Error in(std::string_view context) const;

 private:
  ErrorCode code_;
};

}  // namespace fsdp
