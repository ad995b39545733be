# SPDX-License-Identifier: Apache-2.0
# The target `fsdp_hdf5`: libhdf5 for this build.
#
# Debian's shared library brings thirty others along (curl, LDAP, Kerberos, ...), which cost every run of the command some
# 6 ms before main.  The static archive needs only two small ones, so it is used if it links.
include(CheckSourceCompiles)

add_library(fsdp_hdf5 INTERFACE)
find_library(FSDP_HDF5_ARCHIVE NAMES libhdf5_serial.a libhdf5.a HINTS ${HDF5_LIBRARY_DIRS} NO_DEFAULT_PATH)
find_library(FSDP_SZIP_ARCHIVE NAMES libsz.a)
find_library(FSDP_AEC_ARCHIVE NAMES libaec.a)
mark_as_advanced(FSDP_HDF5_ARCHIVE FSDP_SZIP_ARCHIVE FSDP_AEC_ARCHIVE)
if(FSDP_HDF5_ARCHIVE)
  set(archives ${FSDP_HDF5_ARCHIVE})
  foreach(archive IN ITEMS ${FSDP_SZIP_ARCHIVE} ${FSDP_AEC_ARCHIVE})
    if(archive)
      list(APPEND archives ${archive})
    endif()
  endforeach()
  if(FSDP_STATIC)
    list(APPEND archives ${ZLIB_LIBRARIES})   # again, behind its user: CMake names an archive once, and the linker reads from left to right
  endif()
  set(CMAKE_REQUIRED_INCLUDES ${HDF5_INCLUDE_DIRS})
  set(CMAKE_REQUIRED_LIBRARIES ${archives} ZLIB::ZLIB Threads::Threads ${CMAKE_DL_LIBS} m)
  check_source_compiles(CXX "#include <hdf5.h>\nint main() { return H5Fcreate(\"x\", 0, 0, 0) < 0; }" FSDP_HDF5_ARCHIVE_LINKS)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_LIBRARIES)
endif()
if(FSDP_HDF5_ARCHIVE_LINKS)
  target_include_directories(fsdp_hdf5 SYSTEM INTERFACE ${HDF5_INCLUDE_DIRS})
  target_link_libraries(fsdp_hdf5 INTERFACE ${archives} ZLIB::ZLIB Threads::Threads ${CMAKE_DL_LIBS} m)
elseif(FSDP_STATIC)
  message(FATAL_ERROR "a static build needs archives of libhdf5 and of what it needs (Debian: libhdf5-dev, libaec-dev), or "
    "-DFSDP_WITH_HDF5=OFF")
else()
  target_link_libraries(fsdp_hdf5 INTERFACE PkgConfig::HDF5)
endif()
