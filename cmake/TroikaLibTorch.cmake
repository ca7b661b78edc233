# Finds LibTorch and says what it can do: TROIKA_WITH_GLOO where its c10d has Gloo and Gloo's headers
# are here, in GLOO_INCLUDE_DIR; TROIKA_WITH_NCCL where its c10d has NCCL and NCCL's header is here, in
# NCCL_INCLUDE_DIR.
include(CheckCXXSourceCompiles)
include(TroikaTorchPackage)
troika_before_torch()
find_package(Torch 1.13 REQUIRED)
find_package(fmt REQUIRED)
troika_after_torch()

if("${TORCH_CXX_FLAGS}" MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
  message(FATAL_ERROR
    "[cmake] LibTorch ${Torch_VERSION} is built for the old C++ ABI; "
    "got ${TORCH_CXX_FLAGS} from ${Torch_DIR}, expected _GLIBCXX_USE_CXX11_ABI=1 "
    "(take the archive libtorch-cxx11-abi-shared-with-deps, or LibTorch 2.7 or later)")
endif()

# CMake leaves folders inside the project out of the search path of installed programs
# (CMAKE_INSTALL_RPATH_USE_LINK_PATH); a LibTorch below build/ is in one.
get_target_property(torch_library torch_cpu LOCATION)
get_filename_component(torch_folder "${torch_library}" DIRECTORY)
if(NOT torch_folder IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
  list(APPEND CMAKE_INSTALL_RPATH "${torch_folder}")
endif()

# troika_libtorch_has(VARIABLE WITH definition AMONG definitions HEADERS folder INCLUDES folders SOURCE code):
# sets VARIABLE to whether LibTorch defines it, the folder of headers was found, and the code compiles.
# The answer is kept until another LibTorch or other arguments are given.
function(troika_libtorch_has variable)
  cmake_parse_arguments(PARSE_ARGV 1 HAS "" "WITH;HEADERS;SOURCE" "AMONG;INCLUDES")
  set(asked "${Torch_DIR};${Torch_VERSION};${HAS_AMONG};${HAS_HEADERS};${HAS_INCLUDES}")
  if(NOT asked STREQUAL "${${variable}_ASKED}")
    unset(${variable} CACHE)
    set(${variable}_ASKED "${asked}" CACHE INTERNAL "What ${variable} was found for")
  endif()
  if(HAS_HEADERS AND HAS_WITH IN_LIST HAS_AMONG)
    set(CMAKE_REQUIRED_INCLUDES ${TORCH_INCLUDE_DIRS} ${HAS_HEADERS} ${HAS_INCLUDES})
    list(TRANSFORM HAS_AMONG PREPEND -D OUTPUT_VARIABLE CMAKE_REQUIRED_DEFINITIONS)
    list(APPEND CMAKE_REQUIRED_DEFINITIONS ${TORCH_CXX_FLAGS})
    set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
    check_cxx_source_compiles("${HAS_SOURCE}" ${variable})
  else()
    set(${variable} OFF CACHE INTERNAL "Test ${variable}")
  endif()
endfunction()

find_path(GLOO_INCLUDE_DIR gloo/transport/device.h HINTS ${TORCH_INCLUDE_DIRS})
get_target_property(torch_definitions torch_cpu INTERFACE_COMPILE_DEFINITIONS)
troika_libtorch_has(TROIKA_WITH_GLOO
  WITH USE_C10D_GLOO AMONG ${torch_definitions}
  HEADERS ${GLOO_INCLUDE_DIR}
  SOURCE "#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
    c10d::ProcessGroupGloo* group;")

set(cuda_definitions "")
set(cuda_includes "")
if(TROIKA_WITH_CUDA)
  get_target_property(cuda_definitions torch_cuda INTERFACE_COMPILE_DEFINITIONS)
  set(cuda_includes ${TROIKA_CUDA_INCLUDE_DIR} ${TROIKA_CUDA_CRT_INCLUDE_DIR} ${CUDAToolkit_INCLUDE_DIRS})
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${TROIKA_CUDA_PREFIXES} PATH_SUFFIXES include)
endif()
troika_libtorch_has(TROIKA_WITH_NCCL
  WITH USE_C10D_NCCL AMONG ${cuda_definitions}
  HEADERS ${NCCL_INCLUDE_DIR}
  INCLUDES ${PROJECT_SOURCE_DIR} ${cuda_includes}
  SOURCE "#include <troika/compat/c10d_nccl.h>
    troika::compat::NcclProcessGroup* group;")
if(TROIKA_WITH_CUDA AND NOT TROIKA_WITH_NCCL)
  message(WARNING
    "[cmake] collectives on CUDA tensors will go over the host: LibTorch ${Torch_VERSION} has CUDA, "
    "but NCCL cannot be used; got nccl.h in ${NCCL_INCLUDE_DIR}, definitions ${cuda_definitions} "
    "(set NCCL_INCLUDE_DIR to the folder of nccl.h, and see CMake's log of errors for "
    "why troika/compat/c10d_nccl.h does not compile)")
endif()
