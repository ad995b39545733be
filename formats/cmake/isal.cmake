# SPDX-License-Identifier: Apache-2.0
# The target `fsdp_isal`: isa-l's CRC.  A static build compiles it, because distributions have isa-l only as a shared library.
add_library(fsdp_isal INTERFACE)
if(NOT FSDP_STATIC)
  pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)
  target_link_libraries(fsdp_isal INTERFACE PkgConfig::ISAL)
  return()
endif()

set(isal ${FSDP_STATIC_SOURCES}/isal)
file(STRINGS ${isal}/VERSION ISAL_VERSION LIMIT_COUNT 1)

enable_language(C)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|amd64|AMD64)$")
  set(CPU_X86_64 TRUE)
  enable_language(ASM_NASM)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  set(CPU_AARCH64 TRUE)
  enable_language(ASM)
else()
  set(CPU_UNDEFINED TRUE)   # portable C
endif()
include(${isal}/cmake/crc.cmake)
list(TRANSFORM CRC_SOURCES PREPEND ${isal}/)
add_library(fsdp_isal_crc STATIC ${CRC_SOURCES})
target_include_directories(fsdp_isal_crc PRIVATE ${isal} ${isal}/include ${isal}/crc)
target_compile_definitions(fsdp_isal_crc PRIVATE $<$<COMPILE_LANGUAGE:ASM>:__ASSEMBLY__>)
# As it is: its warnings are not ours.
target_compile_options(fsdp_isal_crc PRIVATE $<$<COMPILE_LANGUAGE:C>:-w>)
set_target_properties(fsdp_isal_crc PROPERTIES C_STANDARD 11 C_EXTENSIONS ON)

# <isa-l/crc.h>, as distributions install it.
file(GLOB isal_headers ${isal}/include/*.h)
file(COPY ${isal_headers} DESTINATION ${CMAKE_CURRENT_BINARY_DIR}/include/isa-l)
target_include_directories(fsdp_isal SYSTEM INTERFACE ${CMAKE_CURRENT_BINARY_DIR}/include)
target_link_libraries(fsdp_isal INTERFACE fsdp_isal_crc)
