# SPDX-License-Identifier: Apache-2.0
# Writes THIRD_PARTY: what is linked into the static fsdp-ckpt, with versions and licences.
#
# On Debian and Ubuntu each archive belongs to a package, whose copyright file is taken as it is.  Elsewhere the caller writes
# the file: -DFSDP_THIRD_PARTY=<file>.
set(FSDP_THIRD_PARTY "" CACHE FILEPATH "Static builds: the licences of what is linked in; empty: those of Debian's packages")
set(THIRD_PARTY ${PROJECT_BINARY_DIR}/THIRD_PARTY)
if(FSDP_THIRD_PARTY)
  configure_file(${FSDP_THIRD_PARTY} ${THIRD_PARTY} COPYONLY)
  return()
endif()

find_program(FSDP_DPKG_QUERY dpkg-query)
mark_as_advanced(FSDP_DPKG_QUERY)
if(NOT FSDP_DPKG_QUERY)
  message(FATAL_ERROR "a static build carries the licences of what is linked in, and without dpkg-query nobody knows them: "
    "write them to a file and give -DFSDP_THIRD_PARTY=<file>")
endif()

set(table "")
set(texts "")
set(rule "================================================================================")
# fsdp_third_party(<name> <licence> <file>): a file of the library.
function(fsdp_third_party name licence file)
  # A folder of the root may be a link into /usr, and the package knows either name.
  file(REAL_PATH ${file} real)
  string(REGEX REPLACE "^/usr/" "/" short ${real})
  foreach(path ${file} ${real} ${short})
    execute_process(COMMAND ${FSDP_DPKG_QUERY} -S ${path} OUTPUT_VARIABLE owner ERROR_QUIET)
    if(owner MATCHES "^([a-z0-9.+-]+)")
      set(package ${CMAKE_MATCH_1})
      break()
    endif()
  endforeach()
  if(NOT package OR NOT EXISTS /usr/share/doc/${package}/copyright)
    message(FATAL_ERROR "no package with a copyright file owns ${file}; write the licences to a file and give -DFSDP_THIRD_PARTY=<file>")
  endif()
  execute_process(COMMAND ${FSDP_DPKG_QUERY} -W -f=\${source:Package}\ \${source:Version}\\n ${package} OUTPUT_VARIABLE version)
  string(REGEX REPLACE "\n.*" "" version "${version}")
  file(READ /usr/share/doc/${package}/copyright text)
  set(table "${table}  ${name}: ${licence}; Debian source package ${version}\n" PARENT_SCOPE)
  set(texts "${texts}\n${rule}\n${name}: the copyright file of ${package}\n${rule}\n\n${text}" PARENT_SCOPE)
endfunction()

function(fsdp_of_compiler out name)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=${name} OUTPUT_VARIABLE file OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(${out} ${file} PARENT_SCOPE)
endfunction()

fsdp_of_compiler(libc libc.a)
fsdp_of_compiler(libstdcxx libstdc++.a)
list(GET ZLIB_LIBRARIES 0 libz)
list(GET ZSTD_LINK_LIBRARIES 0 libzstd)
list(GET NETTLE_LINK_LIBRARIES 0 libnettle)
find_path(FSDP_CLI11_INCLUDE CLI/CLI.hpp)
find_path(FSDP_JSON_INCLUDE nlohmann/json.hpp)
mark_as_advanced(FSDP_CLI11_INCLUDE FSDP_JSON_INCLUDE)
fsdp_third_party("GNU C Library" "LGPL-2.1-or-later" ${libc})
fsdp_third_party("libstdc++ and libgcc" "GPL-3.0-or-later with the GCC Runtime Library Exception" ${libstdcxx})
fsdp_third_party("zlib" "Zlib" ${libz})
fsdp_third_party("zstd" "BSD-3-Clause" ${libzstd})
fsdp_third_party("nettle" "LGPL-3.0-or-later" ${libnettle})
if(FSDP_WITH_HDF5)
  fsdp_third_party("HDF5" "BSD-3-Clause" ${FSDP_HDF5_ARCHIVE})
  if(FSDP_AEC_ARCHIVE)
    fsdp_third_party("libaec" "BSD-2-Clause" ${FSDP_AEC_ARCHIVE})
  endif()
endif()
fsdp_third_party("OpenSSL" "Apache-2.0" ${OPENSSL_CRYPTO_LIBRARY})
fsdp_third_party("c-ares" "MIT" ${CARES_LIBRARY})
fsdp_third_party("expat" "MIT" ${EXPAT_LIBRARY})
fsdp_third_party("JSON for Modern C++" "MIT" ${FSDP_JSON_INCLUDE}/nlohmann/json.hpp)
fsdp_third_party("toml++" "MIT" ${FSDP_TOML_INCLUDE}/toml++/toml.h)
fsdp_third_party("CLI11" "BSD-3-Clause" ${FSDP_CLI11_INCLUDE}/CLI/CLI.hpp)
file(READ ${isal}/LICENSE text)
string(APPEND table "  isa-l: BSD-3-Clause; its CRC alone, of version ${ISAL_VERSION}\n")
string(APPEND texts "\n${rule}\nisa-l: LICENSE\n${rule}\n\n${text}")
file(READ ${FSDP_STATIC_SOURCES}/curl/LICENSE text)
string(APPEND table "  curl: curl; Debian source package curl ${CURL_PACKAGE}\n")
string(APPEND texts "\n${rule}\ncurl: the copyright file of its source package\n${rule}\n\n${text}")
foreach(licence Apache-2.0 LGPL-2.1 LGPL-3 GPL-3)
  file(READ /usr/share/common-licenses/${licence} text)
  string(APPEND texts "\n${rule}\n${licence}\n${rule}\n\n${text}")
endforeach()
file(WRITE ${THIRD_PARTY}.part "fsdp-ckpt is under the Apache License 2.0.  This static build of it contains:

${table}
The C library and nettle are under the LGPL: you may replace them.  The sources of fsdp-ckpt are public, and its static preset
links it with whatever versions of these libraries it finds; tools/packaging/static.cmake has the options.

The licences follow: the copyright files of the packages as a whole, which also list files that no program contains, and the
texts that they refer to.
${texts}")
configure_file(${THIRD_PARTY}.part ${THIRD_PARTY} COPYONLY)
