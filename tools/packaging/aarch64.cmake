# SPDX-License-Identifier: Apache-2.0
# A toolchain for CMake: AArch64 by Debian's cross compiler, with the archives that tools/packaging/aarch64.sh fetched into
# the folder FSDP_SYSROOT.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static)
set(FSDP_SYSROOT "" CACHE PATH "What tools/packaging/aarch64.sh fetched")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES FSDP_SYSROOT)
set(CMAKE_FIND_ROOT_PATH ${FSDP_SYSROOT})
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
# Headers without a library, such as CLI11's, are those of this machine.
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
# Where packages have what differs between processors, such as OpenSSL's configuration.h.
set(CMAKE_C_STANDARD_INCLUDE_DIRECTORIES ${FSDP_SYSROOT}/usr/include/aarch64-linux-gnu)
set(CMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES ${FSDP_SYSROOT}/usr/include/aarch64-linux-gnu)
set(ENV{PKG_CONFIG_LIBDIR} ${FSDP_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${FSDP_SYSROOT}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${FSDP_SYSROOT})
