# SPDX-License-Identifier: Apache-2.0
# What find_package(fsdp COMPONENTS torch cuda) reads; see formats/cmake/install.cmake for the rest, and for the component.
include(GNUInstallDirs)

# The public headers.
set(headers
  activation_checkpoint.h agree.h checkpoint.h comm_hooks.h device_mesh.h fairscale_options.h fsdp.h fully_shard.h
  fully_sharded.h gathered.h grad_scaler.h
  memory_estimate.h meta_device.h nccl_options.h optim/adamw.h optim_state_dict.h options.h parallel/differentiable.h
  parallel/expert_parallel.h parallel/tensor_parallel.h param_groups.h placement.h process_group.h
  reduce.h shard_layout.h state_dict.h state_value.h strategy.h tensor_tree.h unit_call.h wrap_policy.h)
set(include ${CMAKE_CURRENT_SOURCE_DIR}/include)
list(TRANSFORM headers PREPEND ${include}/libfsdp/)
target_sources(fsdp PUBLIC FILE_SET HEADERS BASE_DIRS ${include} FILES ${headers})
target_compile_features(fsdp PUBLIC cxx_std_20)
add_library(fsdp::fsdp ALIAS fsdp)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/fsdp)
install(TARGETS fsdp EXPORT fsdp-torch-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev)
install(EXPORT fsdp-torch-targets NAMESPACE fsdp:: DESTINATION ${package} COMPONENT dev)
# Separate from the others: the user's LibTorch may have no CUDA.
if(TARGET fsdp_cuda)
  set_target_properties(fsdp_cuda PROPERTIES EXPORT_NAME cuda)
  install(TARGETS fsdp_cuda_parts fsdp_cuda EXPORT fsdp-cuda-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
  install(EXPORT fsdp-cuda-targets NAMESPACE fsdp:: DESTINATION ${package} COMPONENT dev)
endif()
install(FILES cmake/torch.cmake DESTINATION ${package} RENAME fsdp-torch.cmake COMPONENT dev)
set(FSDP_TORCH_VERSION ${FSDP_TORCH_VERSION} PARENT_SCOPE)   # for the description of the Debian package
# LibTorch promises no binary compatibility between versions.
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/fsdp-torch-version.cmake CONTENT "set(FSDP_BUILT_WITH_TORCH \"${FSDP_TORCH_VERSION}\")\n" @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/fsdp-torch-version.cmake DESTINATION ${package} COMPONENT dev)
