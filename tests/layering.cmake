# SPDX-License-Identifier: Apache-2.0
# Fails where an include points up: base <- container <- layout, base <- model <- layout, formats <- tools;
# where LibTorch leaks in; and where a third party leaves its one file.
# Run: cmake -DROOT=<source folder> -P tests/layering.cmake
cmake_policy(VERSION 3.25)

function(refuse folder pattern why)
  file(GLOB_RECURSE files ${ROOT}/${folder}/*.h ${ROOT}/${folder}/*.cpp)
  foreach(file ${files})
    if(file IN_LIST ARGN)
      continue()
    endif()
    file(STRINGS ${file} lines REGEX "^#include [<\"]${pattern}")
    foreach(line ${lines})
      message(SEND_ERROR "${file}: ${line}: ${why}")
    endforeach()
  endforeach()
endfunction()

refuse(formats/base "formats/(container|model|layout)/" "base knows nothing above it")
refuse(formats/container "formats/(model|layout)/" "container knows base alone")
refuse(formats/model "formats/(container|layout)/" "the model knows base alone")
refuse(formats/layout "formats/open" "only open sees all layouts")
refuse(formats "tools/|libfsdp/" "formats stands below tools and libfsdp")
refuse(tools "libfsdp/" "tools and libfsdp do not know each other")
refuse(formats "(torch|ATen|c10)/" "formats knows no LibTorch")
refuse(tools "(torch|ATen|c10)/" "tools know no LibTorch")
refuse(formats "nlohmann/" "JSON stays in formats/base/json.cpp" ${ROOT}/formats/base/json.cpp)
refuse(tools "nlohmann/" "JSON stays in formats/base/json.cpp")
refuse(formats "zlib.h|zstd.h" "decompressors stay in their files"
       ${ROOT}/formats/base/crc32.cpp ${ROOT}/formats/container/decompress.cpp
       ${ROOT}/formats/container/inflate_stream.cpp)
refuse(formats "nettle/" "SHA-256 stays in formats/base/sha256.cpp" ${ROOT}/formats/base/sha256.cpp)
file(GLOB with_hdf5 ${ROOT}/formats/container/hdf5_*)
refuse(formats "(hdf5|H5.*)[.]h[>\"]" "libhdf5 stays in formats/container/hdf5_*" ${with_hdf5})
refuse(tools "(hdf5|H5.*)[.]h[>\"]" "libhdf5 stays in formats/container/hdf5_*")
refuse(formats "CLI/" "CLI11 stays in tools/cli.cpp")
refuse(tools "CLI/" "CLI11 stays in tools/cli.cpp" ${ROOT}/tools/cli.cpp)
refuse(libfsdp "tools/" "tools and libfsdp do not know each other")
refuse(libfsdp "(CLI|nlohmann)/" "third parties of other folders")
