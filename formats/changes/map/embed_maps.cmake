# SPDX-License-Identifier: Apache-2.0
# Puts the built-in maps into a C++ source.
#
#   cmake -DHERE=<folder of the maps> -DOUTPUT=<source to write> -P embed_maps.cmake
file(GLOB maps RELATIVE ${HERE} ${HERE}/*.toml)
list(SORT maps COMPARE NATURAL)
set(source "// Made of formats/changes/map/maps by formats/changes/map/embed_maps.cmake.\n#include \"formats/changes/map/builtin.h\"\n\nnamespace fsdp::formats::map {\nnamespace {\n\nconstexpr BuiltinMap kMaps[] = {\n")
foreach(map ${maps})
  file(READ ${HERE}/${map} text)
  string(REGEX REPLACE "[.]toml$" "" name ${map})
  string(APPEND source "    {\"${name}\", R\"MAP(${text})MAP\"},\n")
endforeach()
string(APPEND source "};\n\n}  // namespace\n\nstd::span<const BuiltinMap> builtin_maps() {\n  return kMaps;\n}\n\n}  // namespace fsdp::formats::map\n")
file(WRITE ${OUTPUT} "${source}")
