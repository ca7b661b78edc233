# The set-up before and after find_package(Torch) with which any LibTorch can be used: that of a distribution,
# of an archive, or of the wheel of PyPI's `torch`. Troika's build and its installed
# package (troika-config.cmake) do both.

# Where LibTorch has CUDA, its package looks for a whole CUDA toolkit with nvcc, enables the language
# CUDA, and asks for the architectures to compile for. It does none of this when torch::cudart is a
# target. Troika compiles no CUDA code, so it provides the CUDA runtime itself, after the search.
# A project that has enabled CUDA has the toolkit, and keeps what LibTorch's package makes of it.
function(troika_before_torch)
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if(CUDA IN_LIST languages OR TARGET torch::cudart)
    return()
  endif()
  foreach(target torch::cudart torch::nvtoolsext)
    add_library(${target} INTERFACE IMPORTED)
  endforeach()
  set_target_properties(torch::cudart PROPERTIES TROIKA_PROVIDES TRUE)
endfunction()

# Needs the targets of fmt, too. Sets TROIKA_WITH_CUDA to whether LibTorch's part for CUDA is used: it has
# one, and TROIKA_CUDA is on. Sets TROIKA_CUDA_PREFIXES, where headers and libraries of CUDA lie in `include`
# and `lib`.
function(troika_after_torch)
  # LibTorch's package looks for torch by its name, and takes that of the system before its own.
  get_target_property(library torch LOCATION)
  get_target_property(cpu_library torch_cpu LOCATION)
  get_filename_component(name "${library}" NAME)
  get_filename_component(folder "${cpu_library}" DIRECTORY)
  set(library "${folder}/${name}")
  set(TROIKA_WITH_CUDA OFF)
  if(TARGET torch_cuda AND TROIKA_CUDA)
    set(TROIKA_WITH_CUDA ON)
  elseif(TARGET torch_cuda)
    # libtorch.so only joins libtorch_cpu.so and libtorch_cuda.so, and the second needs all libraries of CUDA.
    set(library "${cpu_library}")
    set_target_properties(torch PROPERTIES INTERFACE_LINK_LIBRARIES torch_cpu_library)
  endif()
  set(TROIKA_WITH_CUDA ${TROIKA_WITH_CUDA} PARENT_SCOPE)
  get_target_property(configurations torch IMPORTED_CONFIGURATIONS)
  set_target_properties(torch PROPERTIES IMPORTED_LOCATION "${library}")
  if(configurations)
    foreach(configuration IN LISTS configurations)
      set_target_properties(torch PROPERTIES IMPORTED_LOCATION_${configuration} "${library}")
    endforeach()
  endif()
  if(TROIKA_WITH_CUDA)
    # PyPI's CUDA packages lie beside the package `torch`. A toolkit comes second, because LibTorch
    # may need newer libraries than the toolkit has.
    get_filename_component(site_packages "${folder}/../.." ABSOLUTE)
    file(GLOB packages "${site_packages}/nvidia/*")
    set(TROIKA_CUDA_PREFIXES ${packages} $ENV{CUDA_HOME} $ENV{CUDA_PATH} ${CUDAToolkit_ROOT} /usr/local/cuda)
    set(TROIKA_CUDA_PREFIXES ${TROIKA_CUDA_PREFIXES} PARENT_SCOPE)
    troika_cuda_runtime("${folder}" "${packages}")
  endif()
  troika_fmt_before_torch()
  troika_standard_library_before_torch()
  troika_links_with_torch("${library}")
endfunction()

# Gives torch::cudart headers and library, where troika_before_torch made that target.
function(troika_cuda_runtime torch_folder packages)
  get_target_property(provides torch::cudart TROIKA_PROVIDES)
  if(NOT provides)
    return()
  endif()
  # The linker looks here before any folder of a toolkit.
  list(TRANSFORM packages APPEND /lib OUTPUT_VARIABLE package_folders)
  list(TRANSFORM package_folders PREPEND -Wl,-rpath-link, OUTPUT_VARIABLE options)
  set_target_properties(torch::cudart PROPERTIES INTERFACE_LINK_OPTIONS "${options}")

  find_path(TROIKA_CUDA_INCLUDE_DIR cuda_runtime_api.h HINTS ${TROIKA_CUDA_PREFIXES} PATH_SUFFIXES include)
  # Packages and archives have the library under a versioned name alone.
  set(libraries "")
  foreach(folder ${torch_folder} ${package_folders})
    file(GLOB found "${folder}/libcudart.so*" "${folder}/libcudart-*.so*")
    list(APPEND libraries ${found})
  endforeach()
  if(NOT libraries)
    find_library(TROIKA_CUDART_LIBRARY cudart HINTS ${TROIKA_CUDA_PREFIXES} PATH_SUFFIXES lib64 lib)
    set(libraries ${TROIKA_CUDART_LIBRARY})
  endif()
  # CUDA 13 has these in a package of their own, which PyPI's torch does not require.
  find_path(TROIKA_CUDA_CRT_INCLUDE_DIR crt/host_defines.h
            HINTS ${TROIKA_CUDA_INCLUDE_DIR} ${TROIKA_CUDA_PREFIXES} PATH_SUFFIXES include)
  if(TROIKA_CUDA_INCLUDE_DIR AND NOT TROIKA_CUDA_CRT_INCLUDE_DIR)
    message(FATAL_ERROR
      "[cmake] headers of the CUDA runtime need crt/host_defines.h; got ${TROIKA_CUDA_INCLUDE_DIR} without it, "
      "expected it there or in a CUDA toolkit (PyPI: install nvidia-cuda-crt of the same version; or use LibTorch's "
      "part for CPUs alone by -DTROIKA_CUDA=OFF)")
  endif()
  if(TROIKA_CUDA_INCLUDE_DIR AND TROIKA_CUDA_CRT_INCLUDE_DIR AND libraries)
    list(GET libraries 0 cudart)
    set(includes ${TROIKA_CUDA_INCLUDE_DIR} ${TROIKA_CUDA_CRT_INCLUDE_DIR})
    list(REMOVE_DUPLICATES includes)
    set_target_properties(torch::cudart PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${includes}" INTERFACE_LINK_LIBRARIES "${cudart}")
  endif()
endfunction()

# The wheel has headers of its own fmt among LibTorch's. Those of the fmt that Troika and spdlog are
# linked with must be found first: a folder that holds only them is put before LibTorch's.
function(troika_fmt_before_torch)
  get_target_property(torch_folders torch INTERFACE_INCLUDE_DIRECTORIES)
  get_target_property(fmt_folders fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
  foreach(folder ${torch_folders})
    if(EXISTS "${folder}/fmt/core.h" AND NOT folder IN_LIST fmt_folders)
      find_path(TROIKA_FMT_INCLUDE_DIR fmt/core.h PATHS ${fmt_folders} NO_DEFAULT_PATH REQUIRED)
      set(first "${CMAKE_BINARY_DIR}/troika-fmt")
      file(MAKE_DIRECTORY "${first}")
      file(CREATE_LINK "${TROIKA_FMT_INCLUDE_DIR}/fmt" "${first}/fmt" SYMBOLIC)
      set_target_properties(torch PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${first};${torch_folders}")
      return()
    endif()
  endforeach()
endfunction()

# The wheel's libraries export parts of the C++ standard library of their own compiler, such as
# std::filesystem::remove_all(), which ends in a call of address 0 there. The system's must be found first.
function(troika_standard_library_before_torch)
  set(shared libstdc++.so)
  execute_process(COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=${shared} OUTPUT_VARIABLE found
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(found STREQUAL shared)
    message(FATAL_ERROR
      "[cmake] ${CMAKE_CXX_COMPILER} would link its C++ standard library into each program, beside the one that "
      "LibTorch loads; got no ${shared} of this compiler, expected one (choose another compiler by "
      "-DCMAKE_CXX_COMPILER=..., after removing this build folder)")
  endif()
  set_property(TARGET torch APPEND PROPERTY
               INTERFACE_LINK_OPTIONS "LINKER:--push-state,--no-as-needed,-lstdc++,--pop-state")
endfunction()

# Refuses a LibTorch that lacks libraries it needs, before anything is compiled.
function(troika_links_with_torch library)
  if(TROIKA_LINKS_WITH STREQUAL library)
    return()
  endif()
  set(options "")
  if(TROIKA_WITH_CUDA)
    get_target_property(options torch::cudart INTERFACE_LINK_OPTIONS)
    if(NOT options)
      set(options "")
    endif()
  endif()
  set(folder "${CMAKE_BINARY_DIR}/troika-links")
  file(WRITE "${folder}/main.cpp" "int main() {}\n")
  try_compile(links "${folder}" "${folder}/main.cpp"
              LINK_LIBRARIES -Wl,--no-as-needed ${options} "${library}" OUTPUT_VARIABLE output)
  if(NOT links)
    message(FATAL_ERROR
      "[cmake] programs cannot be linked with LibTorch ${Torch_VERSION}; got\n${output}\n"
      "expected all libraries that ${library} needs beside it or on this system "
      "(PyPI's torch: install the nvidia packages that it requires, too, or use its part for CPUs alone by "
      "-DTROIKA_CUDA=OFF)")
  endif()
  set(TROIKA_LINKS_WITH "${library}" CACHE INTERNAL "The LibTorch that a program was linked with")
endfunction()
