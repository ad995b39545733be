# SPDX-License-Identifier: Apache-2.0
# FSDP_STATIC: one fsdp-ckpt that needs nothing but the kernel, and whose bytes follow from the sources, the compiler and the archives alone.
if(FSDP_WITH_TORCH OR FSDP_BUILD_TESTS)
  message(FATAL_ERROR "FSDP_STATIC builds fsdp-ckpt alone: set FSDP_WITH_TORCH and FSDP_BUILD_TESTS to OFF")
endif()
set(FSDP_STATIC_SOURCES "" CACHE PATH "Static builds: what tools/packaging/static_sources.sh fetched; empty: CMake runs it")
if(NOT FSDP_STATIC_SOURCES)
  set(FSDP_STATIC_SOURCES ${PROJECT_BINARY_DIR}/sources)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/packaging/static_sources.sh ${FSDP_STATIC_SOURCES} RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "the sources of isa-l and libcurl could not be fetched; without a network, fetch them elsewhere with "
      "tools/packaging/static_sources.sh FOLDER and set FSDP_STATIC_SOURCES to the folder")
  endif()
endif()
# Every find_library() and pkg_check_modules() takes archives.
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
# __FILE__ and symbols name no folder of this machine; the longer name first, because the build often lies inside the sources.
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=${PROJECT_BINARY_DIR}=build;-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.>"
  "$<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=${FSDP_STATIC_SOURCES}=sources>"
  "$<$<COMPILE_LANGUAGE:C,CXX>:-fPIC;-fvisibility=hidden;-ffunction-sections;-fdata-sections>")
# Of the program; the native part of the Python module (tools/python) is made of the same objects.
# A position-independent program is loaded at random addresses, also where it is static.
set(FSDP_STATIC_LINK_OPTIONS -static-pie -Wl,--gc-sections -Wl,--build-id=sha1 -Wl,-z,relro -Wl,-z,now -s
  # no_loading.cpp
  -Wl,--wrap=dlopen,--wrap=dlsym,--wrap=dlclose,--wrap=dlerror
  -Wl,--wrap=getaddrinfo,--wrap=gethostbyname,--wrap=getservbyname,--wrap=getservbyname_r,--wrap=getservbyport_r
  # The C library warns where a static program would load others at run time (dlopen, getpwnam, getaddrinfo, iconv): none may.
  -Wl,--fatal-warnings)
# Addresses that are relocated at the start fill a fortieth of the space: 400 KB less to read.
include(CheckLinkerFlag)
check_linker_flag(CXX "-Wl,--fatal-warnings,-z,pack-relative-relocs" FSDP_PACKS_RELOCATIONS)   # ld 2.38 on x86-64, later elsewhere
if(FSDP_PACKS_RELOCATIONS)
  list(APPEND FSDP_STATIC_LINK_OPTIONS -Wl,-z,pack-relative-relocs)
endif()
