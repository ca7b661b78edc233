# Compiler options every target of this project shares. They are the same for libraries and
# programs, so that all of them can use one precompiled header.
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# -fpch-preprocess lets ccache see through the precompiled header.
add_library(troika_options INTERFACE)
target_compile_options(troika_options INTERFACE
  $<BUILD_INTERFACE:-fPIC;-Wall;-Wextra;-Werror;-Wno-unknown-pragmas>
  $<BUILD_INTERFACE:$<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>>)
if(TROIKA_SANITIZE)
  target_compile_options(troika_options INTERFACE
    $<BUILD_INTERFACE:-fsanitize=${TROIKA_SANITIZE};-fno-omit-frame-pointer>)
  target_link_options(troika_options INTERFACE $<BUILD_INTERFACE:-fsanitize=${TROIKA_SANITIZE}>)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${CCACHE_PROGRAM})
endif()
