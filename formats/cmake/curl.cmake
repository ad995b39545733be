# SPDX-License-Identifier: Apache-2.0
# The target `fsdp_curl`: in a static build libcurl with HTTP alone, libexpat, and what they need.  Other builds load both at run time.
add_library(fsdp_curl INTERFACE)
if(NOT FSDP_STATIC)
  return()
endif()
find_package(OpenSSL REQUIRED)
find_package(EXPAT REQUIRED)
pkg_check_modules(FSDP_CARES REQUIRED libcares)
file(STRINGS ${FSDP_STATIC_SOURCES}/curl/VERSION CURL_PACKAGE LIMIT_COUNT 1)
string(REGEX REPLACE "-[^-]*$" "" CURL_VERSION ${CURL_PACKAGE})

# No exception passes through OpenSSL, and without its tables for unwinding the program is half a megabyte shorter.
foreach(part SSL Crypto)
  get_target_property(archive OpenSSL::${part} IMPORTED_LOCATION)
  cmake_path(GET archive FILENAME name)
  execute_process(COMMAND ${CMAKE_OBJCOPY} --remove-section=.eh_frame --remove-section=.rela.eh_frame ${archive} ${CMAKE_CURRENT_BINARY_DIR}/${name}
    COMMAND_ERROR_IS_FATAL ANY)
  set_target_properties(OpenSSL::${part} PROPERTIES IMPORTED_LOCATION ${CMAKE_CURRENT_BINARY_DIR}/${name})
endforeach()

# libcurl's own CMake files, which ask what the system offers.
foreach(on HTTP_ONLY ENABLE_ARES CURL_USE_OPENSSL CURL_DISABLE_OPENSSL_AUTO_LOAD_CONFIG CURL_DISABLE_ALTSVC CURL_DISABLE_COOKIES
    CURL_DISABLE_DOH CURL_DISABLE_GETOPTIONS CURL_DISABLE_HSTS CURL_DISABLE_MIME CURL_DISABLE_NETRC CURL_DISABLE_NTLM
    CURL_DISABLE_PROGRESS_METER
    HAVE_POLL_FINE)   # a cross-compiling build does not ask
  set(${on} ON CACHE INTERNAL "")
endforeach()
foreach(off BUILD_CURL_EXE BUILD_SHARED_LIBS BUILD_TESTING PICKY_COMPILER ENABLE_MANUAL ENABLE_UNIX_SOCKETS USE_LIBIDN2 USE_NGHTTP2
    CURL_ZLIB CURL_USE_LIBPSL CURL_USE_LIBSSH2 CURL_ENABLE_EXPORT_TARGET)
  set(${off} OFF CACHE INTERNAL "")
endforeach()
# certificates.h searches.
set(CURL_CA_BUNDLE none CACHE STRING "" FORCE)
set(CURL_CA_PATH none CACHE STRING "" FORCE)
add_subdirectory(${FSDP_STATIC_SOURCES}/curl ${CMAKE_CURRENT_BINARY_DIR}/curl EXCLUDE_FROM_ALL SYSTEM)
target_compile_options(libcurl PRIVATE -w -Os -fno-asynchronous-unwind-tables)
target_link_libraries(fsdp_curl INTERFACE libcurl EXPAT::EXPAT)
