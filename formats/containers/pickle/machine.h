// SPDX-License-Identifier: Apache-2.0
// Reads pickle streams of protocols 2 to 5 without running anything.
// Source: the opcode documentation in CPython's Lib/pickletools.py.
#pragma once

#include <cstdint>
#include <string_view>

#include "formats/bytes/base/byte_source.h"
#include "formats/bytes/base/interface.h"
#include "formats/containers/pickle/value.h"

namespace fsdp::formats {

// Gives the names in a stream a meaning.  The defaults build inert values, so a host overrides only
// what it folds into something smaller or refuses.
class PickleHost : public Interface {
 public:
  // Called once per distinct pair when the stream refers to module.name.  Names are as written:
  // protocol 2 says __builtin__ for Python 3's builtins, protocol 4 has names with dots.  Returns a
  // tag >= 0 of its own choice, kept in the value, or -1.
  // Throws: kGlobal to refuse it.
  virtual std::int32_t global(std::string_view module, std::string_view name) = 0;
  // REDUCE: callable(*args).  `callable` is a kGlobal, kObject or kOpaque, `args` a tuple (checked
  // before).  Default: a kObject.
  virtual Value reduce(const Value& callable, Value args);
  // NEWOBJ: cls.__new__(cls, *args).  Default: a kObject with by_new.
  virtual Value new_object(const Value& cls, Value args);
  // BUILD: `object` is the kObject or kOpaque made before.  Returns the value that replaces it on
  // the stack.  If `shared`, the memo has another reference to `object`, and the result must be
  // `object` itself (kBuild otherwise).
  // Default: sets `state`; a second BUILD, or one on anything but a kObject, is kBuild.
  virtual Value build(Value object, Value state, bool shared);
  // Called if a container of the stream contains itself and the stream will be read once more from
  // its beginning (see Note [cycles]).  Returns false (the default) if the host does not support
  // such streams, which are then refused (kCycle).
  virtual bool restart() { return false; }
  // BINPERSID.  Default: kPersid.
  virtual Value persistent_id(Value id);
};

struct PickleLimits {
  std::uint64_t max_depth = 1'000;
  std::uint64_t max_nodes = 50'000'000;  // values alive at once; a host's folded ones do not count
  std::uint64_t max_string_bytes = 1U << 30U;
};

// Reads one pickle that begins at byte 0 of `source` and must end with it (STOP is its last byte).
//
// The machine follows CPython's semantics for the opcodes that PyTorch and Python's pickler write;
// all others are refused by name and offset.  Strings of Python 2 become kString if they are ASCII,
// else kBytes.  A container no longer changes once something refers to it, so no value contains
// itself.  A reference to an incomplete container becomes a back-reference if the host restarts
// (kCycle otherwise).  Frames must nest according to the protocol.  The stream is read twice, in
// blocks.  The first pass finds the memo slots that are ever fetched; the second keeps only those,
// so memory is that of the result, not of the memo.  Lengths are compared with the bytes left
// before anything is allocated.
//
// Throws: kEmpty, kTruncated, kTrailing, kOpcode, kProto, kGlobal, kMemo, kReduce, kBuild, kType,
// kStack, kFrame, kIntRange, kUtf8, kCycle, kKey, kPersid, kLimitDepth, kLimitNodes, kLimitSize;
// whatever the host throws.  Messages name the opcode and its byte.
Value read_pickle(const ByteSource& source, PickleHost& host, const PickleLimits& limits = {});

// Like read_pickle, but other bytes may follow the pickle (legacy torch.save files): reads the
// pickle at `offset`, and moves `offset` past its STOP.
Value read_pickle_prefix(const ByteSource& source, std::uint64_t& offset, PickleHost& host,
                         const PickleLimits& limits = {});

}  // namespace fsdp::formats
