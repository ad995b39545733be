# SPDX-License-Identifier: Apache-2.0
# Imported targets for the LibTorch in the folder FSDP_TORCH (a LibTorch archive, or the `torch` folder of
# PyPI's wheel): fsdp_torch, for the CPU, and fsdp_torch_cuda, where it was built with CUDA.
#
# If that LibTorch cannot be used, sets FSDP_TORCH_PROBLEM to the reason and what to do, and makes
# no target; FSDP_TORCH_CUDA_PROBLEM is the same for fsdp_torch_cuda alone.  The installed package
# reads this file, too, and takes only the version FSDP_BUILT_WITH_TORCH.
#
# Not find_package(Torch): that of the wheel enables the CUDA language and looks for the whole toolkit, while
# nothing here has kernels to compile, and the wheel's own dependencies hold every header and library needed.
find_package(Threads REQUIRED)

# The versions that libfsdp was built and tested with; no other place lists them.
set(FSDP_TRIED_TORCH 2.11.0 2.15.0)
list(JOIN FSDP_TRIED_TORCH " and " FSDP_TRIED)

# LibTorch's version; newer releases have the numbers in the second header.
set(FSDP_TORCH_VERSION "")
set(fsdp_version "of an unknown version")
foreach(fsdp_header csrc/api/include/torch/version.h headeronly/version.h)
  if(EXISTS "${FSDP_TORCH}/include/torch/${fsdp_header}")
    file(STRINGS "${FSDP_TORCH}/include/torch/${fsdp_header}" fsdp_lines REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+$")
    list(TRANSFORM fsdp_lines REPLACE "^.* " "")
    if(fsdp_lines)
      list(JOIN fsdp_lines "." fsdp_version)
      set(FSDP_TORCH_VERSION ${fsdp_version})
    endif()
  endif()
endforeach()

set(FSDP_TORCH_PROBLEM "")
set(FSDP_TORCH_CUDA_PROBLEM "")
string(JOIN " " fsdp_wanted LibTorch ${FSDP_BUILT_WITH_TORCH})
set(fsdp_remedy "set it to the folder of ${fsdp_wanted} that has include/ and lib/, for example to what \
`python -c 'import torch; print(torch.__path__[0])'` prints")
if(NOT FSDP_TORCH)
  set(FSDP_TORCH_PROBLEM "FSDP_TORCH is not set: ${fsdp_remedy}")
elseif(NOT EXISTS "${FSDP_TORCH}/include/torch/csrc/api/include/torch/torch.h")
  set(FSDP_TORCH_PROBLEM "FSDP_TORCH (${FSDP_TORCH}) holds no LibTorch: ${fsdp_remedy}")
elseif(FSDP_BUILT_WITH_TORCH AND NOT FSDP_TORCH_VERSION STREQUAL FSDP_BUILT_WITH_TORCH)
  set(FSDP_TORCH_PROBLEM "libfsdp was built with ${fsdp_wanted}, and FSDP_TORCH (${FSDP_TORCH}) is ${fsdp_version}; \
versions are not binary compatible: name a ${fsdp_wanted}, or build libfsdp with this one (it was tried with ${FSDP_TRIED})")
else()
  foreach(fsdp_library libtorch_cpu.so libc10.so)
    if(NOT EXISTS "${FSDP_TORCH}/lib/${fsdp_library}")
      set(FSDP_TORCH_PROBLEM "FSDP_TORCH (${FSDP_TORCH}) has LibTorch's headers, but no lib/${fsdp_library}: ${fsdp_remedy}")
    endif()
  endforeach()
endif()
if(FSDP_TORCH_PROBLEM)
  return()
endif()

if(fsdp_FIND_QUIETLY)
elseif(FSDP_TORCH_VERSION IN_LIST FSDP_TRIED_TORCH)
  message(STATUS "LibTorch ${FSDP_TORCH_VERSION}: libfsdp was tried with ${FSDP_TRIED}")
else()
  message(WARNING "FSDP_TORCH (${FSDP_TORCH}) is LibTorch ${FSDP_TORCH_VERSION}; libfsdp was tried with ${FSDP_TRIED}")
endif()

# The wheel's libraries find each other by their own run path; the linker has to be told.
file(GLOB FSDP_TORCH_NVIDIA ${FSDP_TORCH}/../nvidia/*/lib)
# Several find_package of one project share the targets.
if(NOT TARGET fsdp_torch)
  add_library(fsdp_torch INTERFACE)
  target_include_directories(fsdp_torch SYSTEM INTERFACE
    ${FSDP_TORCH}/include ${FSDP_TORCH}/include/torch/csrc/api/include)
  # NDEBUG and the backends' switches change the layout of LibTorch's classes: they are those of its own build.
  target_compile_definitions(fsdp_torch INTERFACE NDEBUG USE_C10D_GLOO USE_DISTRIBUTED)
  target_link_libraries(fsdp_torch INTERFACE ${FSDP_TORCH}/lib/libtorch_cpu.so ${FSDP_TORCH}/lib/libc10.so Threads::Threads)
  target_link_directories(fsdp_torch INTERFACE ${FSDP_TORCH}/lib)
  foreach(fsdp_folder ${FSDP_TORCH_NVIDIA})
    target_link_options(fsdp_torch INTERFACE -Wl,-rpath-link,${fsdp_folder})
  endforeach()
endif()

if(NOT EXISTS "${FSDP_TORCH}/lib/libtorch_cuda.so")
  set(FSDP_TORCH_CUDA_PROBLEM "FSDP_TORCH (${FSDP_TORCH}) is a ${fsdp_wanted} without CUDA: name one that has lib/libtorch_cuda.so")
  return()
endif()
find_path(FSDP_CUDA_INCLUDE cuda_runtime_api.h
  HINTS ${FSDP_TORCH}/../nvidia/cu13/include ${FSDP_TORCH}/../nvidia/cuda_runtime/include
  PATHS /usr/local/cuda/include DOC "Headers of the CUDA runtime")
# Inline functions of c10's headers call the runtime.  The wheel's has no name without a version.
find_library(FSDP_CUDART NAMES cudart libcudart.so.13 libcudart.so.12
  HINTS ${FSDP_TORCH_NVIDIA} ${FSDP_TORCH}/lib PATHS /usr/local/cuda/lib64 DOC "The CUDA runtime")
find_path(FSDP_NCCL_INCLUDE nccl.h HINTS ${FSDP_TORCH}/../nvidia/nccl/include DOC "Headers of NCCL")
foreach(fsdp_name FSDP_CUDA_INCLUDE FSDP_CUDART FSDP_NCCL_INCLUDE)
  if(NOT ${fsdp_name})
    get_property(fsdp_meaning CACHE ${fsdp_name} PROPERTY HELPSTRING)
    set(FSDP_TORCH_CUDA_PROBLEM "not found: ${fsdp_meaning}; set ${fsdp_name} to the place")
  endif()
endforeach()
if(NOT FSDP_TORCH_CUDA_PROBLEM AND NOT TARGET fsdp_torch_cuda)
  add_library(fsdp_torch_cuda INTERFACE)
  target_include_directories(fsdp_torch_cuda SYSTEM INTERFACE ${FSDP_CUDA_INCLUDE} ${FSDP_NCCL_INCLUDE})
  target_compile_definitions(fsdp_torch_cuda INTERFACE USE_C10D_NCCL)
  target_link_libraries(fsdp_torch_cuda INTERFACE fsdp_torch
    ${FSDP_TORCH}/lib/libtorch_cuda.so ${FSDP_TORCH}/lib/libc10_cuda.so ${FSDP_CUDART})
endif()
