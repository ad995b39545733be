# SPDX-License-Identifier: Apache-2.0
# Installs the library, its headers and the files that find_package(fsdp) reads, as the component `dev`.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# The interface: front/open.h, front/create.h, state/content/content.h, state/checkpoint/source_pieces.h, state/model/tensor_reader.h,
# bytes/remote/remote_stores.h, and what they include.
set(headers
  bytes/base/byte_source.h bytes/base/cat.h bytes/base/crc32.h bytes/base/dtype.h bytes/base/error.h bytes/base/file_descriptor.h bytes/base/interface.h bytes/base/team.h bytes/base/unheld.h
  state/checkpoint/checkpoint.h state/checkpoint/source_pieces.h state/content/content.h state/content/output.h state/content/state_tree.h
  bytes/files/checkpoint_names.h bytes/files/file.h bytes/files/file_crcs.h bytes/files/listing.h bytes/files/local_file.h bytes/files/seal.h
  families/runs/formats.h families/trainers/carried_files.h front/create.h state/model/box.h
  state/model/chunk_data.h state/model/copy.h state/model/finding.h state/model/index.h state/model/tensor_reader.h front/open.h
  bytes/outputs/atomic_file.h bytes/outputs/atomic_folder.h bytes/outputs/file.h bytes/outputs/file_link.h bytes/outputs/journal.h bytes/outputs/options.h
  containers/pickle/value.h bytes/remote/remote_stores.h bytes/store/file.h)
list(TRANSFORM headers PREPEND ${PROJECT_SOURCE_DIR}/formats/)
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
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/fsdp-config.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/fsdp-config.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/fsdp-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/fsdp-config.cmake ${CMAKE_CURRENT_BINARY_DIR}/fsdp-config-version.cmake
  DESTINATION ${package} COMPONENT dev)
