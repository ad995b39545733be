# SPDX-License-Identifier: Apache-2.0
# What users install: the wheels and the static program in them, on machines unlike this one.  tests/run.sh sets the variables.
set(FSDP_TEST_PACKAGING_PYTHON "" CACHE FILEPATH "A Python with the packages of tests/support/requirements-packaging.txt")
set(FSDP_TEST_STATIC_SOURCES "" CACHE PATH "What tools/packaging/static_sources.sh fetched")
set(FSDP_TEST_OLD_USERLAND "" CACHE PATH "A root file system of Debian 11 with python3-venv")
set(FSDP_TEST_TORCHES "" CACHE PATH "PyTorch for several Pythons, as need_torches of tests/support/provision.sh makes it")

add_executable(packages_without_calls without_calls.cpp)
target_include_directories(packages_without_calls PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/../fault)
target_link_libraries(packages_without_calls PRIVATE fsdp_build_options)

set(check ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/check_packages.py)

# The module finds the program of this build.
add_test(NAME packages.module COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/module_test.py)
set_tests_properties(packages.module PROPERTIES LABELS packages TIMEOUT 120
  ENVIRONMENT "FSDP_CKPT=${FSDP_TEST_TOOL};FSDP_TEST_DATA=${FSDP_TEST_DATA};PYTHONPATH=${PROJECT_SOURCE_DIR}/tools/python;PYTHONDONTWRITEBYTECODE=1")

# The command of this build, or the one that FSDP_TEST_BINARY names, on kernels and processors that lack something.
foreach(case old_kernel no_confinement odd_places)
  add_test(NAME packages.${case} COMMAND ${check} ${case} --tool ${FSDP_TEST_TOOL} --data ${FSDP_TEST_DATA}
    --without $<TARGET_FILE:packages_without_calls>)
  set_tests_properties(packages.${case} PROPERTIES LABELS packages TIMEOUT 120 SKIP_RETURN_CODE 77)
endforeach()

# Instrumented builds test nothing here that others do not.
if(NOT FSDP_TEST_PACKAGING_PYTHON OR CMAKE_CXX_FLAGS MATCHES "-fsanitize" OR FSDP_COVERAGE)
  message(STATUS "No tests of the wheel: FSDP_TEST_PACKAGING_PYTHON is not set, or the build is instrumented; tests/run.sh sets it")
  return()
endif()

set(dist ${CMAKE_CURRENT_BINARY_DIR}/dist)
set(sources)
if(FSDP_TEST_STATIC_SOURCES)
  set(sources FSDP_STATIC_SOURCES=${FSDP_TEST_STATIC_SOURCES})
endif()
add_test(NAME packages.build COMMAND ${PROJECT_SOURCE_DIR}/tools/packaging/wheel.sh ${sources})
set_tests_properties(packages.build PROPERTIES LABELS packages TIMEOUT 900 PROCESSORS 2 FIXTURES_SETUP packages
  ENVIRONMENT "OUT=${dist};BUILD=${CMAKE_CURRENT_BINARY_DIR}/build;PYTHON=${FSDP_TEST_PACKAGING_PYTHON}")
foreach(case static empty_root wheel processors old_userland)
  add_test(NAME packages.${case} COMMAND ${check} ${case} --dist ${dist} --data ${FSDP_TEST_DATA} --version ${PROJECT_VERSION}
    --without $<TARGET_FILE:packages_without_calls> --userland=${FSDP_TEST_OLD_USERLAND} --module-test ${CMAKE_CURRENT_SOURCE_DIR}/module_test.py)
  set_tests_properties(packages.${case} PROPERTIES LABELS packages TIMEOUT 300 SKIP_RETURN_CODE 77 FIXTURES_REQUIRED packages)
endforeach()
set(native ${check})
if(FSDP_TEST_REMOTE_PYTHON)
  set(native ${FSDP_TEST_REMOTE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/check_packages.py --remote)
endif()
add_test(NAME packages.native COMMAND ${native} native --dist ${dist} --data ${FSDP_TEST_DATA} --version ${PROJECT_VERSION}
  --without $<TARGET_FILE:packages_without_calls> --torches=${FSDP_TEST_TORCHES} --tensors-test ${CMAKE_CURRENT_SOURCE_DIR}/../python/tensors_test.py)
set_tests_properties(packages.native PROPERTIES LABELS packages TIMEOUT 900 SKIP_RETURN_CODE 77 FIXTURES_REQUIRED packages)
if(FSDP_TEST_REMOTE_PYTHON)
  add_test(NAME packages.urls COMMAND ${FSDP_TEST_REMOTE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/check_urls.py --dist ${dist} --data ${FSDP_TEST_DATA}
    --version ${PROJECT_VERSION})
  set_tests_properties(packages.urls PROPERTIES LABELS packages TIMEOUT 300 SKIP_RETURN_CODE 77 FIXTURES_REQUIRED packages)
endif()
