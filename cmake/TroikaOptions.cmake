# Compiler options every target of this project shares. They are the same for libraries and
# programs, so that all of them can use one precompiled header.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# An installed program finds a LibTorch that lies outside the system's folders.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

# -fpch-preprocess lets ccache see through the precompiled header.
add_library(troika_options INTERFACE)
target_compile_options(troika_options INTERFACE
  $<BUILD_INTERFACE:-fPIC;-Wall;-Wextra;-Wno-unknown-pragmas>
  $<BUILD_INTERFACE:$<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>>)
# Code that chooses among the versions of a loop for instruction sets (troika_kernels) sees which there are.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(TROIKA_X86_KERNELS ON)
  target_compile_definitions(troika_options INTERFACE $<BUILD_INTERFACE:TROIKA_X86_KERNELS>)
endif()
# GCC 12 takes "text" + std::string for an overflow (its bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(troika_options INTERFACE
    $<BUILD_INTERFACE:-Wno-stringop-overflow;-Wno-stringop-overread;-Wno-restrict>)
endif()
if(TROIKA_WERROR)
  target_compile_options(troika_options INTERFACE $<BUILD_INTERFACE:-Werror>)
endif()
if(TROIKA_SANITIZE)
  # GCC takes what sanitizers add for uses of uninitialised memory.
  target_compile_options(troika_options INTERFACE
    $<BUILD_INTERFACE:-fsanitize=${TROIKA_SANITIZE};-fno-omit-frame-pointer>
    $<BUILD_INTERFACE:$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>>)
  target_link_options(troika_options INTERFACE $<BUILD_INTERFACE:-fsanitize=${TROIKA_SANITIZE}>)
endif()

# mold links a program with LibTorch in a tenth of the time that the system's linker takes.
include(CheckLinkerFlag)
check_linker_flag(CXX -fuse-ld=mold TROIKA_LINKER_IS_MOLD)
if(TROIKA_LINKER_IS_MOLD)
  target_link_options(troika_options INTERFACE $<BUILD_INTERFACE:-fuse-ld=mold>)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${CCACHE_PROGRAM})
endif()

# Where TROIKA_UNITY is on, compiles the sources of `target` together: every source with LibTorch
# costs seconds before its first line. The sources named after the target stay apart, as those that
# use a name in their unnamed namespace that another source of the target uses as well.
function(troika_unity target)
  if(TROIKA_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
    set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()
