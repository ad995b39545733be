# SPDX-License-Identifier: Apache-2.0
# Installs the library, its headers and the files that find_package(fsdp) reads, as the component `dev`.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# The interface: open.h, create.h, content/content.h, checkpoint/source_pieces.h, model/tensor_reader.h,
# remote/remote_stores.h, and what they include.
set(headers
  base/byte_source.h base/crc_ledger.h base/dtype.h base/error.h base/team.h base/unheld.h
  checkpoint/checkpoint.h checkpoint/source_pieces.h content/content.h content/output.h content/state_tree.h
  create.h files/checkpoint_names.h files/file.h files/file_crcs.h files/local_file.h files/seal.h model/box.h
  model/chunk_data.h model/copy.h model/finding.h model/index.h model/tensor_reader.h open.h
  outputs/atomic_file.h outputs/atomic_folder.h outputs/file.h outputs/file_link.h outputs/options.h
  pickle/value.h remote/remote_stores.h store/file.h upload/unfinished.h)
list(TRANSFORM headers PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
target_sources(fsdp_formats PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${headers})
target_compile_features(fsdp_formats PUBLIC cxx_std_20)
set_target_properties(fsdp_formats PROPERTIES EXPORT_NAME formats)
add_library(fsdp::formats ALIAS fsdp_formats)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/fsdp)
install(TARGETS fsdp_formats EXPORT fsdp-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
install(EXPORT fsdp-targets NAMESPACE fsdp:: DESTINATION ${package} COMPONENT dev)

set(FSDP_PACKAGE_HDF5 OFF)
if(FSDP_WITH_HDF5)
  set(FSDP_PACKAGE_HDF5 ON)
endif()
configure_package_config_file(${CMAKE_CURRENT_SOURCE_DIR}/fsdp-config.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/fsdp-config.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/fsdp-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/fsdp-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/fsdp-config-version.cmake
  DESTINATION ${package} COMPONENT dev)
