# SPDX-License-Identifier: Apache-2.0
# Puts the built-in maps into a C++ source: their names, and their text as one deflate stream.
#
#   cmake -DHERE=<folder of the maps> -DOUTPUT=<source to write> -P embed_maps.cmake
file(GLOB maps RELATIVE ${HERE} ${HERE}/*.toml)
list(SORT maps COMPARE NATURAL)
set(whole "")
set(rows "")
foreach(map ${maps})
  file(READ ${HERE}/${map} text)
  string(REGEX REPLACE "[.]toml$" "" name ${map})
  string(LENGTH "${text}" bytes)
  string(APPEND whole "${text}")
  string(APPEND rows "    {\"${name}\", ${bytes}},\n")
endforeach()
string(LENGTH "${whole}" bytes)
file(WRITE ${OUTPUT}.txt "${whole}")
file(ARCHIVE_CREATE OUTPUT ${OUTPUT}.gz PATHS ${OUTPUT}.txt FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9)
file(READ ${OUTPUT}.gz stream HEX)
# The header has the time, which would make every build another one; without a name in it, it has 10 bytes. Behind the stream stand 8 bytes.
if(NOT stream MATCHES "^1f8b0800")
  message(FATAL_ERROR "${OUTPUT}.gz: begins with another header than that of gzip without a name")
endif()
string(LENGTH ${stream} digits)
math(EXPR digits "${digits} - 36")
string(SUBSTRING ${stream} 20 ${digits} stream)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," stream "${stream}")
string(REGEX REPLACE "(0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],)" "\\1\n" stream "${stream}")
file(WRITE ${OUTPUT} "// Made of formats/changes/map/maps by formats/changes/map/embed_maps.cmake.
#include \"formats/changes/map/builtin.h\"

#include <cstddef>
#include <string>
#include <vector>

#include \"formats/bytes/base/byte_source.h\"
#include \"formats/containers/zip/decompress.h\"

namespace fsdp::formats::map {
namespace {

struct EmbeddedMap {
  std::string_view name;
  std::size_t bytes;  // of its text
};

constexpr EmbeddedMap kMaps[] = {
${rows}};

// The texts, one behind the other, deflated.
constexpr unsigned char kStream[] = {
${stream}};

}  // namespace

std::span<const BuiltinMap> builtin_maps() {
  static const std::string texts = [] {
    std::string out;
    inflate(MemorySource(std::as_bytes(std::span(kStream))), ${bytes}, [&](std::span<const std::byte> bytes) {
      for (const std::byte byte : bytes) out.push_back(static_cast<char>(byte));
    });
    return out;
  }();
  static const std::vector<BuiltinMap> maps = [] {
    std::vector<BuiltinMap> out;
    std::string_view rest = texts;
    for (const EmbeddedMap& map : kMaps) {
      out.push_back({map.name, rest.substr(0, map.bytes)});
      rest.remove_prefix(map.bytes);
    }
    return out;
  }();
  return maps;
}

}  // namespace fsdp::formats::map
")
file(REMOVE ${OUTPUT}.txt ${OUTPUT}.gz)
