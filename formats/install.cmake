# SPDX-License-Identifier: Apache-2.0
# Installs the library, its headers and the files that find_package(fsdp) reads.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.h)
target_sources(fsdp_formats PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${headers})
target_compile_features(fsdp_formats PUBLIC cxx_std_20)
set_target_properties(fsdp_formats PROPERTIES EXPORT_NAME formats)
add_library(fsdp::formats ALIAS fsdp_formats)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/fsdp)
install(TARGETS fsdp_formats EXPORT fsdp-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT fsdp-targets NAMESPACE fsdp:: DESTINATION ${package})

set(FSDP_PACKAGE_HDF5 OFF)
if(FSDP_WITH_HDF5)
  set(FSDP_PACKAGE_HDF5 ON)
endif()
configure_package_config_file(${CMAKE_CURRENT_SOURCE_DIR}/fsdp-config.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/fsdp-config.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/fsdp-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/fsdp-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/fsdp-config-version.cmake
  DESTINATION ${package})
