# SPDX-License-Identifier: Apache-2.0
# Imported targets for the LibTorch in the folder FSDP_TORCH (a LibTorch archive, or the `torch` folder of
# PyPI's wheel): fsdp_torch, for the CPU, and fsdp_torch_cuda, where it was built with CUDA.
#
# Not find_package(Torch): that of the wheel enables the CUDA language and looks for the whole toolkit, while
# nothing here has kernels to compile, and the wheel's own dependencies hold every header and library needed.
if(NOT EXISTS "${FSDP_TORCH}/include/torch/csrc/api/include/torch/torch.h")
  message(FATAL_ERROR "FSDP_TORCH (${FSDP_TORCH}) holds no LibTorch: set it to the folder "
    "that has include/ and lib/, for example to what `python -c 'import torch; print(torch.__path__[0])'` prints")
endif()
find_package(Threads REQUIRED)

# Its version; newer LibTorch has the numbers in the second header.
set(FSDP_TORCH_VERSION "")
foreach(header csrc/api/include/torch/version.h headeronly/version.h)
  if(EXISTS "${FSDP_TORCH}/include/torch/${header}")
    file(STRINGS "${FSDP_TORCH}/include/torch/${header}" lines REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+$")
    list(TRANSFORM lines REPLACE "^.* " "")
    list(JOIN lines "." version)
    if(version)
      set(FSDP_TORCH_VERSION ${version})
    endif()
  endif()
endforeach()

# The versions that libfsdp was built and tested with; no other place lists them.
set(FSDP_TRIED_TORCH 2.11.0 2.15.0)
list(JOIN FSDP_TRIED_TORCH " and " FSDP_TRIED)
if(FSDP_TORCH_VERSION IN_LIST FSDP_TRIED_TORCH)
  message(STATUS "LibTorch ${FSDP_TORCH_VERSION}: libfsdp was tried with ${FSDP_TRIED}")
else()
  message(WARNING "FSDP_TORCH (${FSDP_TORCH}) is LibTorch ${FSDP_TORCH_VERSION}; libfsdp was tried with ${FSDP_TRIED}")
endif()

add_library(fsdp_torch INTERFACE)
target_include_directories(fsdp_torch SYSTEM INTERFACE
  ${FSDP_TORCH}/include ${FSDP_TORCH}/include/torch/csrc/api/include)
# NDEBUG and the backends' switches change the layout of LibTorch's classes: they are those of its own build.
target_compile_definitions(fsdp_torch INTERFACE NDEBUG USE_C10D_GLOO USE_DISTRIBUTED)
target_link_libraries(fsdp_torch INTERFACE ${FSDP_TORCH}/lib/libtorch_cpu.so ${FSDP_TORCH}/lib/libc10.so Threads::Threads)

# The wheel's libraries find each other by their own run path; the linker has to be told.
file(GLOB FSDP_TORCH_NVIDIA ${FSDP_TORCH}/../nvidia/*/lib)
target_link_directories(fsdp_torch INTERFACE ${FSDP_TORCH}/lib)
foreach(folder ${FSDP_TORCH_NVIDIA})
  target_link_options(fsdp_torch INTERFACE -Wl,-rpath-link,${folder})
endforeach()

if(EXISTS "${FSDP_TORCH}/lib/libtorch_cuda.so")
  find_path(FSDP_CUDA_INCLUDE cuda_runtime_api.h
    HINTS ${FSDP_TORCH}/../nvidia/cu13/include ${FSDP_TORCH}/../nvidia/cuda_runtime/include
    PATHS /usr/local/cuda/include DOC "Headers of the CUDA runtime")
  # Inline functions of c10's headers call it.  The wheel's has no name without a version.
  find_library(FSDP_CUDART NAMES cudart libcudart.so.13 libcudart.so.12
    HINTS ${FSDP_TORCH_NVIDIA} ${FSDP_TORCH}/lib PATHS /usr/local/cuda/lib64 DOC "The CUDA runtime")
  find_path(FSDP_NCCL_INCLUDE nccl.h HINTS ${FSDP_TORCH}/../nvidia/nccl/include DOC "Headers of NCCL")
endif()
if(FSDP_CUDA_INCLUDE AND FSDP_CUDART AND FSDP_NCCL_INCLUDE)
  add_library(fsdp_torch_cuda INTERFACE)
  target_include_directories(fsdp_torch_cuda SYSTEM INTERFACE ${FSDP_CUDA_INCLUDE} ${FSDP_NCCL_INCLUDE})
  target_compile_definitions(fsdp_torch_cuda INTERFACE USE_C10D_NCCL)
  target_link_libraries(fsdp_torch_cuda INTERFACE fsdp_torch
    ${FSDP_TORCH}/lib/libtorch_cuda.so ${FSDP_TORCH}/lib/libc10_cuda.so ${FSDP_CUDART})
endif()
