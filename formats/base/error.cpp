// SPDX-License-Identifier: Apache-2.0
#include "formats/base/error.h"

namespace fsdp {

std::string_view code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kUsage:
      return "USAGE";
    case ErrorCode::kNotFound:
      return "NOT_FOUND";
    case ErrorCode::kExists:
      return "EXISTS";
    case ErrorCode::kSamePath:
      return "SAME_PATH";
    case ErrorCode::kIo:
      return "IO";
    case ErrorCode::kNoSpace:
      return "NO_SPACE";
    case ErrorCode::kBusy:
      return "BUSY";
    case ErrorCode::kAccess:
      return "ACCESS";
    case ErrorCode::kNetwork:
      return "NETWORK";
    case ErrorCode::kChanged:
      return "CHANGED";
    case ErrorCode::kInterrupted:
      return "INTERRUPTED";
    case ErrorCode::kOutOfMemory:
      return "OUT_OF_MEMORY";
    case ErrorCode::kUnsupported:
      return "UNSUPPORTED";
    case ErrorCode::kUnknownFormat:
      return "UNKNOWN_FORMAT";
    case ErrorCode::kEmpty:
      return "EMPTY";
    case ErrorCode::kTruncated:
      return "TRUNCATED";
    case ErrorCode::kTrailing:
      return "TRAILING";
    case ErrorCode::kLimitDepth:
      return "LIMIT_DEPTH";
    case ErrorCode::kLimitNodes:
      return "LIMIT_NODES";
    case ErrorCode::kLimitEntries:
      return "LIMIT_ENTRIES";
    case ErrorCode::kLimitRatio:
      return "LIMIT_RATIO";
    case ErrorCode::kLimitSize:
      return "LIMIT_SIZE";
    case ErrorCode::kOverflow:
      return "OVERFLOW";
    case ErrorCode::kOpcode:
      return "OPCODE";
    case ErrorCode::kProto:
      return "PROTO";
    case ErrorCode::kGlobal:
      return "GLOBAL";
    case ErrorCode::kMemo:
      return "MEMO";
    case ErrorCode::kReduce:
      return "REDUCE";
    case ErrorCode::kBuild:
      return "BUILD";
    case ErrorCode::kType:
      return "TYPE";
    case ErrorCode::kStack:
      return "STACK";
    case ErrorCode::kFrame:
      return "FRAME";
    case ErrorCode::kIntRange:
      return "INT_RANGE";
    case ErrorCode::kUtf8:
      return "UTF8";
    case ErrorCode::kName:
      return "NAME";
    case ErrorCode::kCycle:
      return "CYCLE";
    case ErrorCode::kKey:
      return "KEY";
    case ErrorCode::kPersid:
      return "PERSID";
    case ErrorCode::kStorage:
      return "STORAGE";
    case ErrorCode::kTensorBounds:
      return "TENSOR_BOUNDS";
    case ErrorCode::kZipEocd:
      return "ZIP_EOCD";
    case ErrorCode::kZipFraming:
      return "ZIP_FRAMING";
    case ErrorCode::kZip64:
      return "ZIP64";
    case ErrorCode::kZipMismatch:
      return "ZIP_MISMATCH";
    case ErrorCode::kZipOverlap:
      return "ZIP_OVERLAP";
    case ErrorCode::kZipDuplicate:
      return "ZIP_DUPLICATE";
    case ErrorCode::kZipName:
      return "ZIP_NAME";
    case ErrorCode::kZipCrc:
      return "ZIP_CRC";
    case ErrorCode::kZipExtent:
      return "ZIP_EXTENT";
    case ErrorCode::kZipPadding:
      return "ZIP_PADDING";
    case ErrorCode::kUnchecked:
      return "UNCHECKED";
    case ErrorCode::kRecordMissing:
      return "RECORD_MISSING";
    case ErrorCode::kRecordSize:
      return "RECORD_SIZE";
    case ErrorCode::kByteorder:
      return "BYTEORDER";
    case ErrorCode::kNoMetadata:
      return "NO_METADATA";
    case ErrorCode::kNotRegular:
      return "NOT_REGULAR";
    case ErrorCode::kMetaType:
      return "META_TYPE";
    case ErrorCode::kChunkMissing:
      return "CHUNK_MISSING";
    case ErrorCode::kOrphan:
      return "ORPHAN";
    case ErrorCode::kHole:
      return "HOLE";
    case ErrorCode::kOverlap:
      return "OVERLAP";
    case ErrorCode::kBounds:
      return "BOUNDS";
    case ErrorCode::kRank:
      return "RANK";
    case ErrorCode::kDtype:
      return "DTYPE";
    case ErrorCode::kShape:
      return "SHAPE";
    case ErrorCode::kPathEscape:
      return "PATH_ESCAPE";
    case ErrorCode::kPath:
      return "PATH";
    case ErrorCode::kShardMissing:
      return "SHARD_MISSING";
    case ErrorCode::kExtent:
      return "EXTENT";
    case ErrorCode::kExtentOverlap:
      return "EXTENT_OVERLAP";
    case ErrorCode::kExtraFile:
      return "EXTRA_FILE";
    case ErrorCode::kVersion:
      return "VERSION";
    case ErrorCode::kStHeader:
      return "ST_HEADER";
    case ErrorCode::kStJson:
      return "ST_JSON";
    case ErrorCode::kStDuplicate:
      return "ST_DUPLICATE";
    case ErrorCode::kStField:
      return "ST_FIELD";
    case ErrorCode::kStDtype:
      return "ST_DTYPE";
    case ErrorCode::kStShape:
      return "ST_SHAPE";
    case ErrorCode::kStOffsets:
      return "ST_OFFSETS";
    case ErrorCode::kStSize:
      return "ST_SIZE";
    case ErrorCode::kStMetadata:
      return "ST_METADATA";
    case ErrorCode::kJson:
      return "JSON";
    case ErrorCode::kJsonDepth:
      return "JSON_DEPTH";
    case ErrorCode::kIndex:
      return "INDEX";
    case ErrorCode::kToml:
      return "TOML";
    case ErrorCode::kRekeyCollision:
      return "REKEY_COLLISION";
    case ErrorCode::kRekeyUnused:
      return "REKEY_UNUSED";
    case ErrorCode::kRekeyAmbiguous:
      return "REKEY_AMBIGUOUS";
    case ErrorCode::kMismatch:
      return "MISMATCH";
    case ErrorCode::kSeal:
      return "SEAL";
    case ErrorCode::kSealMissing:
      return "SEAL_MISSING";
    case ErrorCode::kSealExtra:
      return "SEAL_EXTRA";
    case ErrorCode::kSealMismatch:
      return "SEAL_MISMATCH";
    case ErrorCode::kUnsealed:
      return "UNSEALED";
    case ErrorCode::kSharedChanged:
      return "SHARED_CHANGED";
    case ErrorCode::kNewerData:
      return "NEWER_DATA";
    case ErrorCode::kH5Open:
      return "H5_OPEN";
    case ErrorCode::kH5Link:
      return "H5_LINK";
    case ErrorCode::kH5Type:
      return "H5_TYPE";
    case ErrorCode::kH5ReaderFailed:
      return "H5_READER_FAILED";
    case ErrorCode::kH5Checksum:
      return "H5_CHECKSUM";
  }
  return "UNKNOWN";
}

Hint take_from_hint(const std::string& key) {
  if (key.empty() || key.find_first_of("*?[=") != std::string::npos) return {};
  return {Remedy::kTakeFrom, key};
}

Error::Error(ErrorCode code, const std::string& message, Hint hint)
    : std::runtime_error(message),
      code_(code),
      hint_(std::make_shared<const Hint>(std::move(hint))) {}

Error Error::in(std::string_view context) const {
  return saying(std::string(context) + ": " + what());
}

Error Error::saying(const std::string& message) const {
  return Error(code_, message, *hint_);
}

}  // namespace fsdp
