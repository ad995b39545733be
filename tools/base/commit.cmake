# SPDX-License-Identifier: Apache-2.0
# Writes OUTPUT, a header with the commit of the sources in ROOT, if it would change: COMMIT if that is given, else what git says, else
# `unknown`.
if(NOT COMMIT)
  set(COMMIT unknown)
  find_program(GIT git)
  if(GIT)
    # Sources that were unpacked inside another repository are not of that repository's commit.
    execute_process(COMMAND ${GIT} -C ${ROOT} rev-parse --show-prefix --short=12 HEAD
      OUTPUT_VARIABLE said ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed AND said MATCHES "^\n([0-9a-f]+)\n$")
      set(COMMIT ${CMAKE_MATCH_1})
      execute_process(COMMAND ${GIT} -C ${ROOT} diff-index --quiet HEAD -- OUTPUT_QUIET ERROR_QUIET RESULT_VARIABLE changed)
      if(changed)
        string(APPEND COMMIT " with changes")
      endif()
    endif()
  endif()
endif()
set(text "#define FSDP_COMMIT \"${COMMIT}\"\n")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT "${before}" STREQUAL "${text}")
  file(WRITE ${OUTPUT} "${text}")
endif()
