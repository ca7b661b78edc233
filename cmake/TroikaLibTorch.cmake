# Finds LibTorch and says what it can do: TROIKA_WITH_GLOO where its c10d has Gloo and Gloo's headers
# are here, in GLOO_INCLUDE_DIR; TROIKA_WITH_NCCL where its c10d has NCCL and NCCL's header is here, in
# NCCL_INCLUDE_DIR.
include(CheckCXXSourceCompiles)
find_package(Torch 1.13 REQUIRED)

if("${TORCH_CXX_FLAGS}" MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
  message(FATAL_ERROR
    "[cmake] LibTorch ${Torch_VERSION} is built for the old C++ ABI; "
    "got ${TORCH_CXX_FLAGS} from ${Torch_DIR}, expected _GLIBCXX_USE_CXX11_ABI=1 "
    "(take the archive libtorch-cxx11-abi-shared-with-deps, or LibTorch 2.7 or later)")
endif()

find_path(GLOO_INCLUDE_DIR gloo/transport/device.h HINTS ${TORCH_INCLUDE_DIRS})
get_target_property(torch_definitions torch_cpu INTERFACE_COMPILE_DEFINITIONS)

# The answer is kept until another LibTorch or Gloo is found.
set(asked "${Torch_DIR};${Torch_VERSION};${GLOO_INCLUDE_DIR};${torch_definitions}")
if(NOT asked STREQUAL "${TROIKA_GLOO_ASKED}")
  unset(TROIKA_WITH_GLOO CACHE)
  set(TROIKA_GLOO_ASKED "${asked}" CACHE INTERNAL "What TROIKA_WITH_GLOO was found for")
endif()
if(GLOO_INCLUDE_DIR AND "USE_C10D_GLOO" IN_LIST torch_definitions)
  set(CMAKE_REQUIRED_INCLUDES ${TORCH_INCLUDE_DIRS} ${GLOO_INCLUDE_DIR})
  list(TRANSFORM torch_definitions PREPEND -D OUTPUT_VARIABLE CMAKE_REQUIRED_DEFINITIONS)
  list(APPEND CMAKE_REQUIRED_DEFINITIONS ${TORCH_CXX_FLAGS})
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  check_cxx_source_compiles("#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
    c10d::ProcessGroupGloo* group;" TROIKA_WITH_GLOO)
  unset(CMAKE_TRY_COMPILE_TARGET_TYPE)
  unset(CMAKE_REQUIRED_DEFINITIONS)
  unset(CMAKE_REQUIRED_INCLUDES)
else()
  set(TROIKA_WITH_GLOO OFF CACHE INTERNAL "Test TROIKA_WITH_GLOO")
endif()

# A LibTorch with CUDA has found its toolkit by now.
set(cuda_definitions "")
if(TARGET torch_cuda)
  get_target_property(cuda_definitions torch_cuda INTERFACE_COMPILE_DEFINITIONS)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
endif()
set(asked "${Torch_DIR};${Torch_VERSION};${NCCL_INCLUDE_DIR};${CUDAToolkit_INCLUDE_DIRS}")
if(NOT asked STREQUAL "${TROIKA_NCCL_ASKED}")
  unset(TROIKA_WITH_NCCL CACHE)
  set(TROIKA_NCCL_ASKED "${asked}" CACHE INTERNAL "What TROIKA_WITH_NCCL was found for")
endif()
if(NCCL_INCLUDE_DIR AND "USE_C10D_NCCL" IN_LIST cuda_definitions)
  set(CMAKE_REQUIRED_INCLUDES ${PROJECT_SOURCE_DIR} ${TORCH_INCLUDE_DIRS}
                              ${CUDAToolkit_INCLUDE_DIRS} ${NCCL_INCLUDE_DIR})
  list(TRANSFORM cuda_definitions PREPEND -D OUTPUT_VARIABLE CMAKE_REQUIRED_DEFINITIONS)
  list(APPEND CMAKE_REQUIRED_DEFINITIONS ${TORCH_CXX_FLAGS})
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
  check_cxx_source_compiles("#include <troika/compat/c10d_nccl.h>
    troika::compat::NcclProcessGroup* group;" TROIKA_WITH_NCCL)
  unset(CMAKE_TRY_COMPILE_TARGET_TYPE)
  unset(CMAKE_REQUIRED_DEFINITIONS)
  unset(CMAKE_REQUIRED_INCLUDES)
else()
  set(TROIKA_WITH_NCCL OFF CACHE INTERNAL "Test TROIKA_WITH_NCCL")
endif()
if(TARGET torch_cuda AND NOT TROIKA_WITH_NCCL)
  message(WARNING
    "[cmake] collectives on CUDA tensors will go over the host: LibTorch ${Torch_VERSION} has CUDA, "
    "but NCCL cannot be used; got nccl.h in ${NCCL_INCLUDE_DIR}, definitions ${cuda_definitions} "
    "(set NCCL_INCLUDE_DIR to the folder of nccl.h, and see CMake's log of errors for "
    "why troika/compat/c10d_nccl.h does not compile)")
endif()
