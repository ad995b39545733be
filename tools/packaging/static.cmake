# SPDX-License-Identifier: Apache-2.0
# FSDP_STATIC: one fsdp-ckpt that needs nothing but the kernel, and whose bytes follow from the sources, the compiler and the archives alone.
if(FSDP_WITH_TORCH OR FSDP_BUILD_TESTS)
  message(FATAL_ERROR "FSDP_STATIC builds fsdp-ckpt alone: set FSDP_WITH_TORCH and FSDP_BUILD_TESTS to OFF")
endif()
# Every find_library() and pkg_check_modules() takes archives.
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
# __FILE__ and symbols name no folder of this machine; the longer name first, because the build often lies inside the sources.
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=${PROJECT_BINARY_DIR}=build;-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.>"
  "$<$<COMPILE_LANGUAGE:C,CXX>:-fPIE;-ffunction-sections;-fdata-sections>")
# A position-independent program is loaded at random addresses, also where it is static.
add_link_options(-static-pie -Wl,--gc-sections -Wl,--build-id=sha1 -Wl,-z,relro -Wl,-z,now -s
  -Wl,--wrap=dlopen,--wrap=dlsym,--wrap=dlclose,--wrap=dlerror   # no_plugins.cpp
  # The C library warns where a static program would load others at run time (dlopen, getpwnam, getaddrinfo, iconv): none may.
  -Wl,--fatal-warnings)
