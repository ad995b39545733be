// SPDX-License-Identifier: Apache-2.0
// The one exception of formats/ and tools/, and the codes that tell its kinds apart.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

#include "formats/bytes/base/cat.h"

namespace fsdp {

// The kinds of errors and their names, which docs/errors.md explains.  Scripts match on the names,
// so codes may be added but never renamed.
#define FSDP_ERROR_CODES(CODE)                                \
  /* The command line and the world around it. */             \
  CODE(kUsage, "USAGE")                                       \
  CODE(kNotFound, "NOT_FOUND")                                \
  CODE(kExists, "EXISTS")                                     \
  CODE(kSamePath, "SAME_PATH")                                \
  CODE(kIo, "IO")                                             \
  CODE(kNoSpace, "NO_SPACE")                                  \
  CODE(kBusy, "BUSY")                                         \
  CODE(kAccess, "ACCESS")                                     \
  CODE(kNetwork, "NETWORK")                                   \
  CODE(kChanged, "CHANGED")                                   \
  CODE(kInterrupted, "INTERRUPTED")                           \
  CODE(kOutOfMemory, "OUT_OF_MEMORY")                         \
  CODE(kUnsupported, "UNSUPPORTED")                           \
  CODE(kUnknownFormat, "UNKNOWN_FORMAT")                      \
  /* Sizes that a file cannot justify. */                     \
  CODE(kEmpty, "EMPTY")                                       \
  CODE(kTruncated, "TRUNCATED")                               \
  CODE(kTrailing, "TRAILING")                                 \
  CODE(kLimitDepth, "LIMIT_DEPTH")                            \
  CODE(kLimitNodes, "LIMIT_NODES")                            \
  CODE(kLimitEntries, "LIMIT_ENTRIES")                        \
  CODE(kLimitRatio, "LIMIT_RATIO")                            \
  CODE(kLimitSize, "LIMIT_SIZE")                              \
  CODE(kOverflow, "OVERFLOW")                                 \
  /* Pickle streams. */                                       \
  CODE(kOpcode, "OPCODE")                                     \
  CODE(kProto, "PROTO")                                       \
  CODE(kGlobal, "GLOBAL")                                     \
  CODE(kMemo, "MEMO")                                         \
  CODE(kReduce, "REDUCE")                                     \
  CODE(kBuild, "BUILD")                                       \
  CODE(kType, "TYPE")                                         \
  CODE(kStack, "STACK")                                       \
  CODE(kFrame, "FRAME")                                       \
  CODE(kIntRange, "INT_RANGE")                                \
  CODE(kUtf8, "UTF8")                                         \
  CODE(kName, "NAME")                                         \
  CODE(kCycle, "CYCLE")                                       \
  CODE(kKey, "KEY")                                           \
  CODE(kPersid, "PERSID")                                     \
  CODE(kStorage, "STORAGE")                                   \
  CODE(kTensorBounds, "TENSOR_BOUNDS")                        \
  /* Zip archives as torch.save writes them. */               \
  CODE(kZipEocd, "ZIP_EOCD")                                  \
  CODE(kZipFraming, "ZIP_FRAMING")                            \
  CODE(kZip64, "ZIP64")                                       \
  CODE(kZipMismatch, "ZIP_MISMATCH")                          \
  CODE(kZipOverlap, "ZIP_OVERLAP")                            \
  CODE(kZipDuplicate, "ZIP_DUPLICATE")                        \
  CODE(kZipName, "ZIP_NAME")                                  \
  CODE(kZipCrc, "ZIP_CRC")                                    \
  CODE(kZipExtent, "ZIP_EXTENT")                              \
  CODE(kZipPadding, "ZIP_PADDING")                            \
  CODE(kUnchecked, "UNCHECKED")                               \
  CODE(kRecordMissing, "RECORD_MISSING")                      \
  CODE(kRecordSize, "RECORD_SIZE")                            \
  CODE(kByteorder, "BYTEORDER")                               \
  /* Distributed checkpoint folders. */                       \
  CODE(kNoMetadata, "NO_METADATA")                            \
  CODE(kNotRegular, "NOT_REGULAR")                            \
  CODE(kMetaType, "META_TYPE")                                \
  CODE(kChunkMissing, "CHUNK_MISSING")                        \
  CODE(kOrphan, "ORPHAN")                                     \
  CODE(kHole, "HOLE")                                         \
  CODE(kOverlap, "OVERLAP")                                   \
  CODE(kBounds, "BOUNDS")                                     \
  CODE(kRank, "RANK")                                         \
  CODE(kDtype, "DTYPE")                                       \
  CODE(kShape, "SHAPE")                                       \
  CODE(kPathEscape, "PATH_ESCAPE")                            \
  CODE(kPath, "PATH")                                         \
  CODE(kShardMissing, "SHARD_MISSING")                        \
  CODE(kExtent, "EXTENT")                                     \
  CODE(kExtentOverlap, "EXTENT_OVERLAP")                      \
  CODE(kExtraFile, "EXTRA_FILE")                              \
  CODE(kVersion, "VERSION")                                   \
  /* safetensors and JSON. */                                 \
  CODE(kStHeader, "ST_HEADER")                                \
  CODE(kStJson, "ST_JSON")                                    \
  CODE(kStDuplicate, "ST_DUPLICATE")                          \
  CODE(kStField, "ST_FIELD")                                  \
  CODE(kStDtype, "ST_DTYPE")                                  \
  CODE(kStShape, "ST_SHAPE")                                  \
  CODE(kStOffsets, "ST_OFFSETS")                              \
  CODE(kStSize, "ST_SIZE")                                    \
  CODE(kStMetadata, "ST_METADATA")                            \
  CODE(kJson, "JSON")                                         \
  CODE(kJsonDepth, "JSON_DEPTH")                              \
  CODE(kIndex, "INDEX")                                       \
  /* Files of rules. */                                       \
  CODE(kToml, "TOML")                                         \
  /* New names for the contents of a checkpoint. */           \
  CODE(kRekeyCollision, "REKEY_COLLISION")                    \
  CODE(kRekeyUnused, "REKEY_UNUSED")                          \
  CODE(kRekeyAmbiguous, "REKEY_AMBIGUOUS")                    \
  /* Checkpoints that are combined. */                        \
  CODE(kMismatch, "MISMATCH")                                 \
  /* Quantized weights and their configuration. */            \
  CODE(kQuantTensors, "QUANT_TENSORS")                        \
  CODE(kQuantValues, "QUANT_VALUES")                          \
  CODE(kQuantConfig, "QUANT_CONFIG")                          \
  /* Seals: the state of a checkpoint when it was written. */ \
  CODE(kSeal, "SEAL")                                         \
  CODE(kSealMissing, "SEAL_MISSING")                          \
  CODE(kSealExtra, "SEAL_EXTRA")                              \
  CODE(kSealMismatch, "SEAL_MISMATCH")                        \
  CODE(kUnsealed, "UNSEALED")                                 \
  CODE(kSharedChanged, "SHARED_CHANGED")                      \
  CODE(kNewerData, "NEWER_DATA")                              \
  /* Files of a hub that a folder is compared with. */        \
  CODE(kHubMismatch, "HUB_MISMATCH")                          \
  CODE(kHubMissing, "HUB_MISSING")                            \
  CODE(kHubExtra, "HUB_EXTRA")                                \
  CODE(kHubUnchecked, "HUB_UNCHECKED")                        \
  /* HDF5. */                                                 \
  CODE(kH5Open, "H5_OPEN")                                    \
  CODE(kH5Link, "H5_LINK")                                    \
  CODE(kH5Type, "H5_TYPE")                                    \
  CODE(kH5ReaderFailed, "H5_READER_FAILED")                   \
  CODE(kH5Checksum, "H5_CHECKSUM")

#define FSDP_ENUMERATOR(code, name) code,
enum class ErrorCode { FSDP_ERROR_CODES(FSDP_ENUMERATOR) };
#undef FSDP_ENUMERATOR

// The name in brackets of an error line: kZipCrc -> "ZIP_CRC".
std::string_view code_name(ErrorCode code) noexcept;

// Returns whether an error of this code says nothing about what a file holds: reading failed, was
// interrupted, or found the file changing.  Code that tries whether a file is of some format takes
// other errors as "no".
bool is_no_answer(ErrorCode code) noexcept;

// A remedy for an error.  The code that shows the error words it: the tool names an option, the
// library a field.
enum class Remedy {
  kNone,
  kReplace,             // let the output replace what exists
  kAllowGlobal,         // subject: "module.name", to be taken for plain data
  kExclude,             // subject: a key, to be left out
  kChooseOne,           // choose keys of one model or optimizer
  kDropValues,          // leave out what the output has no place for
  kNameFormat,          // name the format of the output
  kGiveNames,           // name the parameters in their order
  kGiveModel,           // name the parameters, or give a checkpoint of the model
  kRekeyToNames,        // give parameters that have numbers their names
  kRekeyFirst,          // name the parameters for `rekey`, and go on with what it writes
  kMoreMemory,          // allow more memory
  kTakeOne,             // take what differs from the first or the last checkpoint, or choose keys
  kTakeOptimizer,       // take the states of optimizers as well
  kRetype,              // let values get another type
  kDropOptimizer,       // leave optimizer states out
  kStartAnew,           // remove what an earlier run left, and write everything again
  kTakeWhole,           // take the tensors that are whole
  kTakeFrom,            // subject: a key, to be taken from another checkpoint
  kEarlier,             // look for an earlier checkpoint of the run
  kSeal,                // leave a seal
  kResizeTables,        // subject: the number of rows that the tables of a vocabulary are to get
  kMovePrefix,          // subject: "prefix=replacement", for the keys that have the prefix
  kModelConfig,         // give the model's config.json
  kChooseModel,         // choose one model
  kGiveNumber,          // subject: the name of a parameter of a map, to be given a number
  kGiveNumberOrConfig,  // the same, or the model's config.json
  kModelForOrder,       // give a checkpoint of the model beside the order of its names
  kOtherLayout,         // write a folder of torch.distributed.checkpoint
  kDownload,            // subject: the command that downloads the file
  kLook,                // subject: the command that shows what was found
  kNamesFrom,           // give the names and shapes of the parameters in flat ones
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
  // The message is made of the parts: see cat().
  template <formats::IsTextPart First, formats::IsTextPart... Rest>
  Error(ErrorCode code, const First& first, const Rest&... rest)
      : Error(code, formats::cat(first, rest...)) {}
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

// Returns what `work` returns; an Error that it throws gets a context (Error::in).  `context`: a
// text, or a function that returns it, which is called for an error alone.
template <typename Context, typename Work>
decltype(auto) in_context(const Context& context, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    if constexpr (std::is_invocable_v<Context>) {
      throw error.in(context());
    } else {
      throw error.in(context);
    }
  }
}

}  // namespace fsdp
