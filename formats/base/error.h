// SPDX-License-Identifier: Apache-2.0
// The one exception of formats/ and tools/, and the codes that tell its kinds apart.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fsdp {

// The kind of an error.  `code_name` spells each one in capitals (kZipCrc is "ZIP_CRC").  Scripts
// match on that name, so codes may be added but never renamed.
enum class ErrorCode {
  // The command line, and the system.
  kUsage,
  kNotFound,
  kExists,
  kSamePath,
  kIo,
  kNoSpace,
  kBusy,
  kAccess,
  kNetwork,
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
  // Files of rules.
  kToml,
  // New names for the contents of a checkpoint.
  kRekeyCollision,
  kRekeyUnused,
  kRekeyAmbiguous,
  // Checkpoints that are combined.
  kMismatch,
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

// A remedy for an error.  The code that shows the error words it: the tool names an option, the
// library a field.
enum class Remedy {
  kNone,
  kReplace,        // let the output replace what exists
  kAllowGlobal,    // subject: "module.name", to be taken for plain data
  kExclude,        // subject: a key, to be left out
  kChooseOne,      // choose keys of one model or optimizer
  kDropValues,     // leave out what the output has no place for
  kNameFormat,     // name the format of the output
  kGiveNames,      // name the parameters in their order
  kGiveModel,      // name the parameters, or give a checkpoint of the model
  kRekeyFirst,     // name the parameters for `rekey`, and go on with what it writes
  kMoreMemory,     // allow more memory
  kTakeOne,        // take what differs from the first or the last checkpoint, or choose keys
  kTakeOptimizer,  // take the states of optimizers as well
  kRetype,         // let values get another type
  kDropOptimizer,  // leave optimizer states out
  kStartAnew,      // remove what an earlier run left, and write everything again
  kTakeWhole,      // take the tensors that are whole
  kTakeFrom,       // subject: a key, to be taken from another checkpoint
  kEarlier,        // look for an earlier checkpoint of the run
  kSeal,           // leave a seal
  kResizeTables,   // subject: the number of rows that the tables of a vocabulary are to get
  kMovePrefix,     // subject: "prefix=replacement", for the keys that have the prefix
  kModelConfig,    // give the model's config.json
};

struct Hint {
  Remedy remedy = Remedy::kNone;
  std::string subject = {};
};

// Returns the hint kTakeFrom for a key; no hint if the key is empty, or would match other keys as a
// glob.
Hint take_from_hint(const std::string& key);

// A failure to do what was asked.  The message reads `<path>: <container or key>: <symptom with the
// expected and the found value>[; <remedy>]`, in lower case, without a period; a remedy that takes
// an option is a hint instead.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, Hint hint = {});
  ErrorCode code() const noexcept { return code_; }
  const Hint& hint() const noexcept { return *hint_; }
  // Returns the same error with context: "context: what()".
  Error in(std::string_view context) const;
  // Returns the same error with another message.
  Error saying(const std::string& message) const;

 private:
  ErrorCode code_;
  std::shared_ptr<const Hint> hint_;  // shared: copies of an exception must not throw
};

}  // namespace fsdp
