# SPDX-License-Identifier: Apache-2.0
# What find_package(fsdp COMPONENTS torch) reads; see formats/install.cmake for the rest.
include(GNUInstallDirs)

file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.h)
list(FILTER headers EXCLUDE REGEX "/internal/pch\\.h$")
target_sources(fsdp PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${headers})
target_compile_features(fsdp PUBLIC cxx_std_20)
add_library(fsdp::fsdp ALIAS fsdp)

set(targets fsdp)
if(TARGET fsdp_cuda)
  set_target_properties(fsdp_cuda PROPERTIES EXPORT_NAME cuda)
  list(APPEND targets fsdp_cuda_parts fsdp_cuda)
endif()
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/fsdp)
install(TARGETS ${targets} EXPORT fsdp-torch-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT fsdp-torch-targets NAMESPACE fsdp:: DESTINATION ${package})
install(FILES torch.cmake DESTINATION ${package} RENAME fsdp-torch.cmake)
