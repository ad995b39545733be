# SPDX-License-Identifier: Apache-2.0
# Every test has a row in tiers.txt, which says when it runs: tests/support/run_tiers.py reads the same table.

# fsdp_discover_tests(<program> <argument of gtest_discover_tests>...): the tests of a program of GoogleTest, which has one row.
function(fsdp_discover_tests program)
  set_property(GLOBAL APPEND PROPERTY fsdp_tests ${program})
  gtest_discover_tests(${program} ${ARGN})
endfunction()

function(fsdp_collect_tests folder)
  get_property(tests DIRECTORY ${folder} PROPERTY TESTS)
  set_property(GLOBAL APPEND PROPERTY fsdp_tests ${tests})
  get_property(subfolders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(subfolder IN LISTS subfolders)
    fsdp_collect_tests(${subfolder})
  endforeach()
endfunction()

# Fails unless every test of this folder and those below has a row.
function(fsdp_check_tiers)
  set(table ${CMAKE_CURRENT_SOURCE_DIR}/tiers.txt)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table})
  file(STRINGS ${table} rows REGEX "^[^# ]+ +(quick|default|all) +[-0-9]")
  list(TRANSFORM rows REPLACE " .*" "")
  set(families ${rows})
  list(FILTER families INCLUDE REGEX "[*]$")
  list(TRANSFORM families REPLACE "[*]$" "")

  fsdp_collect_tests(${CMAKE_CURRENT_SOURCE_DIR})
  get_property(tests GLOBAL PROPERTY fsdp_tests)
  list(REMOVE_ITEM tests ${rows})
  foreach(family IN LISTS families)
    string(REPLACE "." "[.]" family "${family}")
    list(FILTER tests EXCLUDE REGEX "^${family}")
  endforeach()
  if(tests)
    list(JOIN tests ", " tests)
    message(FATAL_ERROR "no row in tests/tiers.txt for ${tests}: say when each runs, and how many seconds it takes")
  endif()
endfunction()
