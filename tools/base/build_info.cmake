# SPDX-License-Identifier: Apache-2.0
# What --version prints: the commit, and the libraries with their versions.
set(linking "dynamically linked")
get_property(libraries GLOBAL PROPERTY FSDP_LIBRARIES)
list(APPEND libraries "CLI11 ${CLI11_VERSION}")
if(FSDP_STATIC)
  set(linking "statically linked")
endif()
list(JOIN libraries ", " libraries)

# In a file of its own, written anew with a new commit only: one small object then differs, and nothing else is compiled.
set(write_commit ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -DCOMMIT=${FSDP_COMMIT}
  -DOUTPUT=${CMAKE_CURRENT_BINARY_DIR}/generated/tools/commit.h -P ${CMAKE_CURRENT_SOURCE_DIR}/base/commit.cmake)
execute_process(COMMAND ${write_commit})   # for tools that read the sources of a build that is not built
add_custom_target(fsdp_commit BYPRODUCTS ${CMAKE_CURRENT_BINARY_DIR}/generated/tools/commit.h COMMAND ${write_commit} VERBATIM)
add_library(fsdp_build_info OBJECT base/build_info.cpp)
target_include_directories(fsdp_build_info PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/generated)
target_link_libraries(fsdp_build_info PRIVATE fsdp_build_options)
target_compile_definitions(fsdp_build_info PRIVATE FSDP_VERSION="${PROJECT_VERSION}" FSDP_LINKING="${linking}"
  FSDP_LIBRARIES="${libraries}")
add_dependencies(fsdp_build_info fsdp_commit)
