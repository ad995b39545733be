// SPDX-License-Identifier: Apache-2.0
// Pickle streams built opcode by opcode: proto(2, "]" + text("a") + "a").
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::test {

// `number` in `count` bytes, little-endian.
inline std::string little_endian(std::uint64_t number, unsigned count) {
  std::string bytes;
  for (unsigned i = 0; i < count; ++i) bytes.push_back(static_cast<char>(number >> (8 * i)));
  return bytes;
}

// PROTO, the opcodes, STOP.
inline std::string proto(int protocol, std::string_view opcodes) {
  return std::string("\x80") + static_cast<char>(protocol) + std::string(opcodes) + ".";
}

inline std::string text(std::string_view content) {  // BINUNICODE
  return "X" + little_endian(content.size(), 4) + std::string(content);
}
inline std::string number(std::uint8_t value) {
  return {'K', static_cast<char>(value)};
}  // BININT1
inline std::string put(std::uint8_t slot) {
  return {'q', static_cast<char>(slot)};
}  // BINPUT
inline std::string get(std::uint8_t slot) {
  return {'h', static_cast<char>(slot)};
}  // BINGET
inline std::string global(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}
inline std::string repeat(std::string_view opcodes, std::size_t count) {
  std::string all;
  all.reserve(opcodes.size() * count);
  for (std::size_t i = 0; i < count; ++i) all += opcodes;
  return all;
}

}  // namespace fsdp::test
