// SPDX-License-Identifier: Apache-2.0
// The opcodes of pickle: their names, the shape of their arguments, and whether they are accepted.
// Source: the opcode documentation in CPython's Lib/pickletools.py.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace fsdp::formats {

// The newest protocol that Python writes.
inline constexpr unsigned kMaxPickleProtocol = 5;

// The argument after the opcode byte.
enum class PickleArgument : std::uint8_t {
  kRefused,  // the opcode is not accepted
  kNothing,
  kByte1,
  kByte2,
  kByte4,
  kByte8,  // a number of that many bytes
  kLength1,
  kLength4,
  kLength8,        // an unsigned length of that many bytes, then as many bytes
  kSignedLength4,  // the same, but signed
  kTwoLines,       // two lines of text, each ended by '\n'
  kLine,           // one such line
};

// The accepted opcodes: those that Python's pickler and torch.save write for data.
#define FSDP_PICKLE_OPCODES(OP)                            \
  OP(kMark, '(', "MARK", kNothing)                         \
  OP(kStop, '.', "STOP", kNothing)                         \
  OP(kProto, 0x80, "PROTO", kByte1)                        \
  OP(kFrame, 0x95, "FRAME", kByte8)                        \
  OP(kNone, 'N', "NONE", kNothing)                         \
  OP(kNewTrue, 0x88, "NEWTRUE", kNothing)                  \
  OP(kNewFalse, 0x89, "NEWFALSE", kNothing)                \
  OP(kBinInt, 'J', "BININT", kByte4)                       \
  OP(kBinInt1, 'K', "BININT1", kByte1)                     \
  OP(kBinInt2, 'M', "BININT2", kByte2)                     \
  OP(kLong1, 0x8a, "LONG1", kLength1)                      \
  OP(kLong4, 0x8b, "LONG4", kSignedLength4)                \
  OP(kBinFloat, 'G', "BINFLOAT", kByte8)                   \
  OP(kShortBinString, 'U', "SHORT_BINSTRING", kLength1)    \
  OP(kBinString, 'T', "BINSTRING", kSignedLength4)         \
  OP(kShortBinUnicode, 0x8c, "SHORT_BINUNICODE", kLength1) \
  OP(kBinUnicode, 'X', "BINUNICODE", kLength4)             \
  OP(kBinUnicode8, 0x8d, "BINUNICODE8", kLength8)          \
  OP(kShortBinBytes, 'C', "SHORT_BINBYTES", kLength1)      \
  OP(kBinBytes, 'B', "BINBYTES", kLength4)                 \
  OP(kBinBytes8, 0x8e, "BINBYTES8", kLength8)              \
  OP(kByteArray8, 0x96, "BYTEARRAY8", kLength8)            \
  OP(kEmptyTuple, ')', "EMPTY_TUPLE", kNothing)            \
  OP(kTuple, 't', "TUPLE", kNothing)                       \
  OP(kTuple1, 0x85, "TUPLE1", kNothing)                    \
  OP(kTuple2, 0x86, "TUPLE2", kNothing)                    \
  OP(kTuple3, 0x87, "TUPLE3", kNothing)                    \
  OP(kEmptyList, ']', "EMPTY_LIST", kNothing)              \
  OP(kAppend, 'a', "APPEND", kNothing)                     \
  OP(kAppends, 'e', "APPENDS", kNothing)                   \
  OP(kEmptyDict, '}', "EMPTY_DICT", kNothing)              \
  OP(kSetItem, 's', "SETITEM", kNothing)                   \
  OP(kSetItems, 'u', "SETITEMS", kNothing)                 \
  OP(kEmptySet, 0x8f, "EMPTY_SET", kNothing)               \
  OP(kAddItems, 0x90, "ADDITEMS", kNothing)                \
  OP(kFrozenSet, 0x91, "FROZENSET", kNothing)              \
  OP(kBinPut, 'q', "BINPUT", kByte1)                       \
  OP(kLongBinPut, 'r', "LONG_BINPUT", kByte4)              \
  OP(kMemoize, 0x94, "MEMOIZE", kNothing)                  \
  OP(kBinGet, 'h', "BINGET", kByte1)                       \
  OP(kLongBinGet, 'j', "LONG_BINGET", kByte4)              \
  OP(kGlobal, 'c', "GLOBAL", kTwoLines)                    \
  OP(kStackGlobal, 0x93, "STACK_GLOBAL", kNothing)         \
  OP(kReduce, 'R', "REDUCE", kNothing)                     \
  OP(kNewObj, 0x81, "NEWOBJ", kNothing)                    \
  OP(kBuild, 'b', "BUILD", kNothing)                       \
  OP(kBinPersid, 'Q', "BINPERSID", kNothing)

// The other opcodes that Python runs: those of protocols 0 and 1, and those that no pickler writes
// for data.
#define FSDP_PYTHON_OPCODES(OP)                  \
  OP(kInt, 'I', "INT", kLine)                    \
  OP(kLong, 'L', "LONG", kLine)                  \
  OP(kFloat, 'F', "FLOAT", kLine)                \
  OP(kString, 'S', "STRING", kLine)              \
  OP(kUnicode, 'V', "UNICODE", kLine)            \
  OP(kList, 'l', "LIST", kNothing)               \
  OP(kDict, 'd', "DICT", kNothing)               \
  OP(kPop, '0', "POP", kNothing)                 \
  OP(kPopMark, '1', "POP_MARK", kNothing)        \
  OP(kDup, '2', "DUP", kNothing)                 \
  OP(kPut, 'p', "PUT", kLine)                    \
  OP(kGet, 'g', "GET", kLine)                    \
  OP(kInst, 'i', "INST", kTwoLines)              \
  OP(kObj, 'o', "OBJ", kNothing)                 \
  OP(kPersid, 'P', "PERSID", kLine)              \
  OP(kExt1, 0x82, "EXT1", kByte1)                \
  OP(kExt2, 0x83, "EXT2", kByte2)                \
  OP(kExt4, 0x84, "EXT4", kByte4)                \
  OP(kNewObjEx, 0x92, "NEWOBJ_EX", kNothing)     \
  OP(kNextBuffer, 0x97, "NEXT_BUFFER", kNothing) \
  OP(kReadonlyBuffer, 0x98, "READONLY_BUFFER", kNothing)

#define FSDP_ENUMERATOR(op, byte, name, argument) op = (byte),
enum class PickleOp : std::uint8_t { FSDP_PICKLE_OPCODES(FSDP_ENUMERATOR) };
enum class PythonOp : std::uint8_t { FSDP_PYTHON_OPCODES(FSDP_ENUMERATOR) };
#undef FSDP_ENUMERATOR

struct PickleOpcode {
  std::string_view name;  // empty for bytes that are not opcodes
  PickleArgument argument = PickleArgument::kRefused;
  // The argument, also set for opcodes that Python knows and this reader refuses.
  PickleArgument written = PickleArgument::kRefused;
};

// The opcodes by byte.
inline constexpr std::array<PickleOpcode, 256> kPickleOpcodes = [] {
  std::array<PickleOpcode, 256> table{};
#define FSDP_ACCEPT(op, byte, name, argument) \
  table[std::uint8_t{byte}] = {name, PickleArgument::argument, PickleArgument::argument};
#define FSDP_REFUSE(op, byte, name, argument) \
  table[std::uint8_t{byte}] = {name, PickleArgument::kRefused, PickleArgument::argument};
  FSDP_PICKLE_OPCODES(FSDP_ACCEPT)
  FSDP_PYTHON_OPCODES(FSDP_REFUSE)
#undef FSDP_ACCEPT
#undef FSDP_REFUSE
  return table;
}();

// The arguments of kPickleOpcodes in fewer cache lines, for the loop over a stream.
inline constexpr std::array<PickleArgument, 256> kPickleArguments = [] {
  std::array<PickleArgument, 256> table{};
  for (std::size_t byte = 0; byte < table.size(); ++byte)
    table[byte] = kPickleOpcodes[byte].argument;
  return table;
}();

}  // namespace fsdp::formats
