# SPDX-License-Identifier: Apache-2.0
# fsdp-ckpt-mpi: the same verbs, with their data divided among the ranks of an MPI job.  Only two sources know MPI, and only
# this program is linked with it.
set(FSDP_WITH_MPI AUTO CACHE STRING "Build fsdp-ckpt-mpi, the tool for MPI jobs: ON, OFF, or AUTO, where MPI is found")
set_property(CACHE FSDP_WITH_MPI PROPERTY STRINGS ON OFF AUTO)
if(NOT FSDP_WITH_MPI OR FSDP_STATIC OR SKBUILD)
  return()
endif()
# The functions of C are all that is used.
set(MPI_CXX_SKIP_MPICXX ON)
if(FSDP_WITH_MPI STREQUAL "AUTO")
  find_package(MPI QUIET COMPONENTS CXX)
else()
  find_package(MPI REQUIRED COMPONENTS CXX)
endif()
if(NOT MPI_CXX_FOUND)
  return()
endif()

add_executable(fsdp-ckpt-mpi command/mpi_main.cpp command/mpi_team.cpp)
target_link_libraries(fsdp-ckpt-mpi PRIVATE fsdp_cli MPI::MPI_CXX)
target_link_options(fsdp-ckpt-mpi PRIVATE $<$<CONFIG:Release>:LINKER:--gc-sections>)
install(TARGETS fsdp-ckpt-mpi RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT mpi)
