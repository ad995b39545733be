# SPDX-License-Identifier: Apache-2.0
# Puts the data of model types into a C++ source.
#
#   cmake -DINPUT=<architectures.bin> -DOUTPUT=<source to write> -P embed_data.cmake
file(READ ${INPUT} bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "(0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],0x[0-9a-f][0-9a-f],)" "\\1\n" bytes "${bytes}")
file(WRITE ${OUTPUT} "// Made of formats/families/hf/architectures.bin by formats/families/hf/embed_data.cmake.\n#include <cstddef>\n\nnamespace fsdp::formats::hf {\n\nextern const unsigned char kArchitectures[] = {\n${bytes}};\nextern const std::size_t kArchitecturesBytes = sizeof(kArchitectures);\n\n}  // namespace fsdp::formats::hf\n")
