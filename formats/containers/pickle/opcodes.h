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

// The accepted opcodes: those that Python's pickler and torch.save write for data.
enum class PickleOp : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kProto = 0x80,
  kFrame = 0x95,
  kNone = 'N',
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kBinFloat = 'G',
  kShortBinString = 'U',
  kBinString = 'T',
  kShortBinUnicode = 0x8c,
  kBinUnicode = 'X',
  kBinUnicode8 = 0x8d,
  kShortBinBytes = 'C',
  kBinBytes = 'B',
  kBinBytes8 = 0x8e,
  kByteArray8 = 0x96,
  kEmptyTuple = ')',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyDict = '}',
  kSetItem = 's',
  kSetItems = 'u',
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kBinPut = 'q',
  kLongBinPut = 'r',
  kMemoize = 0x94,
  kBinGet = 'h',
  kLongBinGet = 'j',
  kGlobal = 'c',
  kStackGlobal = 0x93,
  kReduce = 'R',
  kNewObj = 0x81,
  kBuild = 'b',
  kBinPersid = 'Q',
};

// The other opcodes that Python runs: those of protocols 0 and 1, and those that no pickler writes
// for data.
enum class PythonOp : std::uint8_t {
  kInt = 'I',
  kLong = 'L',
  kFloat = 'F',
  kString = 'S',
  kUnicode = 'V',
  kList = 'l',
  kDict = 'd',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kPut = 'p',
  kGet = 'g',
  kInst = 'i',
  kObj = 'o',
  kPersid = 'P',
  kExt1 = 0x82,
  kExt2 = 0x83,
  kExt4 = 0x84,
  kNewObjEx = 0x92,
  kNextBuffer = 0x97,
  kReadonlyBuffer = 0x98,
};

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

struct PickleOpcode {
  std::string_view name;  // empty for bytes that are not opcodes
  PickleArgument argument = PickleArgument::kRefused;
  // The argument, also set for opcodes that Python knows and this reader refuses.
  PickleArgument written = PickleArgument::kRefused;
};

namespace internal {

constexpr std::array<PickleOpcode, 256> make_pickle_opcodes() {
  std::array<PickleOpcode, 256> table{};
  const auto accept = [&table](PickleOp op, std::string_view name, PickleArgument argument) {
    table[static_cast<std::uint8_t>(op)] = {name, argument, argument};
  };
  using Op = PickleOp;
  using Argument = PickleArgument;
  accept(Op::kMark, "MARK", Argument::kNothing);
  accept(Op::kStop, "STOP", Argument::kNothing);
  accept(Op::kProto, "PROTO", Argument::kByte1);
  accept(Op::kFrame, "FRAME", Argument::kByte8);
  accept(Op::kNone, "NONE", Argument::kNothing);
  accept(Op::kNewTrue, "NEWTRUE", Argument::kNothing);
  accept(Op::kNewFalse, "NEWFALSE", Argument::kNothing);
  accept(Op::kBinInt, "BININT", Argument::kByte4);
  accept(Op::kBinInt1, "BININT1", Argument::kByte1);
  accept(Op::kBinInt2, "BININT2", Argument::kByte2);
  accept(Op::kLong1, "LONG1", Argument::kLength1);
  accept(Op::kLong4, "LONG4", Argument::kSignedLength4);
  accept(Op::kBinFloat, "BINFLOAT", Argument::kByte8);
  accept(Op::kShortBinString, "SHORT_BINSTRING", Argument::kLength1);
  accept(Op::kBinString, "BINSTRING", Argument::kSignedLength4);
  accept(Op::kShortBinUnicode, "SHORT_BINUNICODE", Argument::kLength1);
  accept(Op::kBinUnicode, "BINUNICODE", Argument::kLength4);
  accept(Op::kBinUnicode8, "BINUNICODE8", Argument::kLength8);
  accept(Op::kShortBinBytes, "SHORT_BINBYTES", Argument::kLength1);
  accept(Op::kBinBytes, "BINBYTES", Argument::kLength4);
  accept(Op::kBinBytes8, "BINBYTES8", Argument::kLength8);
  accept(Op::kByteArray8, "BYTEARRAY8", Argument::kLength8);
  accept(Op::kEmptyTuple, "EMPTY_TUPLE", Argument::kNothing);
  accept(Op::kTuple, "TUPLE", Argument::kNothing);
  accept(Op::kTuple1, "TUPLE1", Argument::kNothing);
  accept(Op::kTuple2, "TUPLE2", Argument::kNothing);
  accept(Op::kTuple3, "TUPLE3", Argument::kNothing);
  accept(Op::kEmptyList, "EMPTY_LIST", Argument::kNothing);
  accept(Op::kAppend, "APPEND", Argument::kNothing);
  accept(Op::kAppends, "APPENDS", Argument::kNothing);
  accept(Op::kEmptyDict, "EMPTY_DICT", Argument::kNothing);
  accept(Op::kSetItem, "SETITEM", Argument::kNothing);
  accept(Op::kSetItems, "SETITEMS", Argument::kNothing);
  accept(Op::kEmptySet, "EMPTY_SET", Argument::kNothing);
  accept(Op::kAddItems, "ADDITEMS", Argument::kNothing);
  accept(Op::kFrozenSet, "FROZENSET", Argument::kNothing);
  accept(Op::kBinPut, "BINPUT", Argument::kByte1);
  accept(Op::kLongBinPut, "LONG_BINPUT", Argument::kByte4);
  accept(Op::kMemoize, "MEMOIZE", Argument::kNothing);
  accept(Op::kBinGet, "BINGET", Argument::kByte1);
  accept(Op::kLongBinGet, "LONG_BINGET", Argument::kByte4);
  accept(Op::kGlobal, "GLOBAL", Argument::kTwoLines);
  accept(Op::kStackGlobal, "STACK_GLOBAL", Argument::kNothing);
  accept(Op::kReduce, "REDUCE", Argument::kNothing);
  accept(Op::kNewObj, "NEWOBJ", Argument::kNothing);
  accept(Op::kBuild, "BUILD", Argument::kNothing);
  accept(Op::kBinPersid, "BINPERSID", Argument::kNothing);

  const auto refuse = [&table](PythonOp op, std::string_view name,
                               Argument written = Argument::kNothing) {
    table[static_cast<std::uint8_t>(op)] = {name, Argument::kRefused, written};
  };
  refuse(PythonOp::kInt, "INT", Argument::kLine);
  refuse(PythonOp::kLong, "LONG", Argument::kLine);
  refuse(PythonOp::kFloat, "FLOAT", Argument::kLine);
  refuse(PythonOp::kString, "STRING", Argument::kLine);
  refuse(PythonOp::kUnicode, "UNICODE", Argument::kLine);
  refuse(PythonOp::kList, "LIST");
  refuse(PythonOp::kDict, "DICT");
  refuse(PythonOp::kPop, "POP");
  refuse(PythonOp::kPopMark, "POP_MARK");
  refuse(PythonOp::kDup, "DUP");
  refuse(PythonOp::kPut, "PUT", Argument::kLine);
  refuse(PythonOp::kGet, "GET", Argument::kLine);
  refuse(PythonOp::kInst, "INST", Argument::kTwoLines);
  refuse(PythonOp::kObj, "OBJ");
  refuse(PythonOp::kPersid, "PERSID", Argument::kLine);
  refuse(PythonOp::kExt1, "EXT1", Argument::kByte1);
  refuse(PythonOp::kExt2, "EXT2", Argument::kByte2);
  refuse(PythonOp::kExt4, "EXT4", Argument::kByte4);
  refuse(PythonOp::kNewObjEx, "NEWOBJ_EX");
  refuse(PythonOp::kNextBuffer, "NEXT_BUFFER");
  refuse(PythonOp::kReadonlyBuffer, "READONLY_BUFFER");
  return table;
}

constexpr std::array<PickleArgument, 256> make_pickle_arguments() {
  std::array<PickleArgument, 256> table{};
  for (std::size_t byte = 0; byte < table.size(); ++byte) {
    table[byte] = make_pickle_opcodes()[byte].argument;
  }
  return table;
}

}  // namespace internal

// The opcodes by byte.
inline constexpr std::array<PickleOpcode, 256> kPickleOpcodes = internal::make_pickle_opcodes();
// The arguments of kPickleOpcodes in fewer cache lines, for the loop over a stream.
inline constexpr std::array<PickleArgument, 256> kPickleArguments =
    internal::make_pickle_arguments();

}  // namespace fsdp::formats
