// SPDX-License-Identifier: Apache-2.0
// The Python names that torch.save files contain, and their meaning to a reader.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/containers/pickle/machine.h"

namespace fsdp::formats {

// The meaning of a name in a torch.save pickle; kept as the tag of the value (Value::global_tag).
enum class TorchGlobal : std::int32_t {
  kUnknown = -1,  // unknown: kept as an inert record, reported
  kPlain = 0,     // known data that needs no interpretation (Namespace, numpy arrays, device, ...)
  kDType,
  kSize,
  kMapping,  // OrderedDict, defaultdict, Counter
  kStorageClass,
  kCodecsEncode,  // bytes under protocol 2
  kBytesType,     // bytes() under protocol 2
  kGetattr,
  kRebuildTensor,
  kRebuildTensorV2,
  kRebuildTensorV3,
  kRebuildParameter,
  kRebuildParameterWithState,
  kRebuildFromTypeV2,
  kRebuildQuantized,
  kRebuildSparse,
  kRebuildMeta,
  kRebuildNested,
  kRebuildWrapperSubclass,
  kRebuildDeviceTensor,
};

// Returns the meaning of a name; kPlain for the rest of the list of plain_names.h.
TorchGlobal known_global(std::string_view module, std::string_view name);

// Reads data.pkl of torch.save: storages are kept as references, tensors checked, bytes folded;
// everything else is inert.  Throws from the machine: its own errors, and kPersid, kStorage,
// kReduce, kTensorBounds, kType.
class TorchPickleHost : public PickleHost {
 public:
  // `archive` is put into every storage reference.  `legacy`: persistent ids of the magic-number
  // format are accepted too.
  explicit TorchPickleHost(std::uint64_t archive = 0, bool legacy = false)
      : archive_(archive), legacy_(legacy) {}

  std::int32_t global(std::string_view module, std::string_view name) override;
  Value reduce(const Value& callable, Value args) override;
  Value persistent_id(Value id) override;
  bool restart() override;

  // Returns whether something in the stream contains itself: back-references stand for it.
  bool cyclic() const { return cyclic_; }
  // Returns the storages in order of first reference, one per key.
  const std::vector<StorageRef>& storages() const { return storages_; }

 private:
  std::uint64_t archive_;
  bool legacy_;
  bool cyclic_ = false;
  std::vector<StorageRef> storages_;
  std::unordered_map<std::string, std::size_t> by_key_;
};

}  // namespace fsdp::formats
