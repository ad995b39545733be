# SPDX-License-Identifier: Apache-2.0
# Installs the command, its completions and its manual page, as the component `tool`; the command itself prints the latter two.
include(GNUInstallDirs)
if(SKBUILD)
  message(STATUS "fsdp-ckpt is compiled: some minutes; Ninja counts the steps, [done/all]")
  # In a wheel: pip puts these below the environment's bin/ and share/, and the licences beside its own.
  set(CMAKE_INSTALL_BINDIR ${SKBUILD_SCRIPTS_DIR})
  set(CMAKE_INSTALL_DATADIR ${SKBUILD_DATA_DIR}/share)
  set(CMAKE_INSTALL_MANDIR ${SKBUILD_DATA_DIR}/share/man)
  set(CMAKE_INSTALL_DOCDIR ${SKBUILD_METADATA_DIR}/licenses)
endif()

install(TARGETS fsdp-ckpt RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tool)
if(FSDP_STATIC)
  install(FILES ${PROJECT_BINARY_DIR}/THIRD_PARTY DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT tool)
endif()

if(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
  message(STATUS "Cross-compiling without an emulator: no completions and no manual page")
  return()
endif()

set(generated "")
# fsdp_print(<file> <folder to install into> <argument>...)
function(fsdp_print file destination)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/share/${file})
  cmake_path(GET output PARENT_PATH folder)
  file(MAKE_DIRECTORY ${folder})
  # Named beside its place first: a build that is interrupted leaves no half of it.
  add_custom_command(OUTPUT ${output}
    COMMAND fsdp-ckpt ${ARGN} > ${output}.part
    COMMAND ${CMAKE_COMMAND} -E rename ${output}.part ${output}
    DEPENDS fsdp-ckpt VERBATIM)
  install(FILES ${output} DESTINATION ${destination} COMPONENT tool)
  set(generated ${generated} ${output} PARENT_SCOPE)
endfunction()

fsdp_print(bash/fsdp-ckpt ${CMAKE_INSTALL_DATADIR}/bash-completion/completions --print-completion bash)
fsdp_print(zsh/_fsdp-ckpt ${CMAKE_INSTALL_DATADIR}/zsh/site-functions --print-completion zsh)
fsdp_print(fish/fsdp-ckpt.fish ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d --print-completion fish)
fsdp_print(fsdp-ckpt.1 ${CMAKE_INSTALL_MANDIR}/man1 --print-man)
add_custom_target(fsdp-ckpt-manual ALL DEPENDS ${generated})
