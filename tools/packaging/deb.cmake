# SPDX-License-Identifier: Apache-2.0
# Debian packages by `cpack`: fsdp-ckpt, the tool, and libfsdp-dev, what find_package(fsdp) finds.
#
# Configure with -DCMAKE_INSTALL_PREFIX=/usr for Debian's folders of libraries.  SOURCE_DATE_EPOCH gives the packages their times.
set(FSDP_MAINTAINER "The fsdp authors <fsdp@example.org>" CACHE STRING "Who answers for the Debian packages: name and address")
mark_as_advanced(FSDP_MAINTAINER)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME fsdp)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
# CPack puts any summary but its own default before the packages' descriptions, which have one each.
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${CMAKE_PROJECT_NAME} built using CMake")
set(CPACK_PACKAGE_CONTACT ${FSDP_MAINTAINER})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

# One package a component.
set(CPACK_COMPONENTS_ALL tool dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_TOOL_PACKAGE_NAME fsdp-ckpt)
set(CPACK_DEBIAN_TOOL_PACKAGE_SECTION science)
set(CPACK_DEBIAN_TOOL_PACKAGE_SHLIBDEPS ON)
# Loaded when a URL is used; a static program has them.
if(NOT FSDP_STATIC)
  set(CPACK_DEBIAN_TOOL_PACKAGE_RECOMMENDS "libcurl4 | libcurl4t64, libexpat1")
endif()
set(CPACK_DEBIAN_TOOL_DESCRIPTION "tool for checkpoints of sharded PyTorch training
Inspects, verifies, joins, reshards, converts and compares the checkpoints of
sharded PyTorch training: torch.distributed.checkpoint folders, torch.save
files, safetensors, HDF5 and what trainers make of them. It needs neither
Python nor PyTorch, and never runs a byte of what it reads.")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libfsdp-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
# A static library is linked with what it is made of.
set(depends zlib1g-dev libisal-dev libzstd-dev nettle-dev "pkgconf | pkg-config")
if(FSDP_WITH_HDF5)
  list(APPEND depends libhdf5-dev)
endif()
list(JOIN depends ", " CPACK_DEBIAN_DEV_PACKAGE_DEPENDS)
set(CPACK_DEBIAN_DEV_PACKAGE_RECOMMENDS "cmake (>= 3.25), g++ (>= 4:12)")
set(CPACK_DEBIAN_DEV_PACKAGE_SUGGESTS "fsdp-ckpt (= ${PROJECT_VERSION})")
set(training "This build has no training part: fsdp::formats alone.")
if(FSDP_WITH_TORCH)
  set(training "fsdp::fsdp trains with fully sharded data parallelism. It was compiled with
LibTorch ${FSDP_TORCH_VERSION}, which is not in this package: set FSDP_TORCH to yours.")
endif()
set(CPACK_DEBIAN_DEV_DESCRIPTION "sharded training for LibTorch, and its checkpoints, in C++
Static libraries, headers and CMake files for find_package(fsdp).
fsdp::formats reads and writes checkpoints of sharded PyTorch training.
${training}")

# For deb_stage.cmake; cpack passes on what begins with CPACK_.
set(CPACK_FSDP_LICENCE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_FSDP_STRIP ${CMAKE_STRIP})
# Compiled or linked in, whoever has the package's shared libraries installed.
find_path(FSDP_CLI11_INCLUDE CLI/CLI.hpp)
find_path(FSDP_JSON_INCLUDE nlohmann/json.hpp)
mark_as_advanced(FSDP_CLI11_INCLUDE FSDP_JSON_INCLUDE)
set(CPACK_FSDP_PARTS_OF_DEV ${FSDP_JSON_INCLUDE}/nlohmann/json.hpp ${FSDP_TOML_INCLUDE}/toml++/toml.h)
set(CPACK_FSDP_PARTS_OF_TOOL ${FSDP_JSON_INCLUDE}/nlohmann/json.hpp ${FSDP_TOML_INCLUDE}/toml++/toml.h ${FSDP_CLI11_INCLUDE}/CLI/CLI.hpp)
if(FSDP_WITH_HDF5 AND FSDP_HDF5_ARCHIVE_LINKS)
  list(APPEND CPACK_FSDP_PARTS_OF_TOOL ${FSDP_HDF5_ARCHIVE})
  if(FSDP_AEC_ARCHIVE)
    list(APPEND CPACK_FSDP_PARTS_OF_TOOL ${FSDP_AEC_ARCHIVE})
  endif()
endif()
if(FSDP_STATIC)
  set(CPACK_FSDP_PARTS_OF_TOOL)   # THIRD_PARTY has them all
endif()
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/deb_stage.cmake)
include(CPack)
