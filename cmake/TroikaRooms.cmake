# troika_room(NAME [TORCH] SOURCES ... [APART sources ...] [DEPENDS rooms and libraries ...]
#             [PRIVATE libraries ...])
#
# One room of the house: a static library troika_NAME, exported as troika::NAME, its headers
# installed from beside the sources. TORCH rooms share one precompiled header of LibTorch.
# APART are those of SOURCES that a unity build compiles one by one (troika_unity).
function(troika_room name)
  cmake_parse_arguments(ROOM "TORCH" "" "SOURCES;APART;DEPENDS;PRIVATE" ${ARGN})
  set(target troika_${name})
  add_library(${target} STATIC ${ROOM_SOURCES})
  add_library(troika::${name} ALIAS ${target})
  troika_unity(${target} ${ROOM_APART})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} PUBLIC ${ROOM_DEPENDS}
    PRIVATE $<BUILD_INTERFACE:troika_options> ${ROOM_PRIVATE})
  if(ROOM_TORCH)
    target_link_libraries(${target} PUBLIC torch)
    if(NOT name STREQUAL "compat")
      target_precompile_headers(${target} REUSE_FROM troika_compat)
    endif()
  endif()
  install(TARGETS ${target} EXPORT troika-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  file(GLOB_RECURSE headers RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS *.h)
  foreach(header IN LISTS headers)
    get_filename_component(folder ${header} DIRECTORY)
    install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/troika/${name}/${folder})
  endforeach()
endfunction()

# troika_kernels(OUT PREFIX prefix [OPTIONS ...]): sets OUT to the sources of loops that are compiled
# once per instruction set, PREFIXbaseline.cpp and, for x86, PREFIXavx2.cpp and PREFIXavx512.cpp. Products
# and sums are not fused, so that all give the same bits.
function(troika_kernels out)
  cmake_parse_arguments(KERNELS "" "PREFIX" "OPTIONS" ${ARGN})
  set(sets baseline)
  if(TROIKA_X86_KERNELS)
    list(APPEND sets avx2 avx512)
  endif()
  set(baseline_options "")
  set(avx2_options -mavx2 -mf16c)
  set(avx512_options -mavx512f -mavx512bw -mavx512vl -mavx512dq -mf16c -mprefer-vector-width=512)
  set(sources "")
  foreach(set IN LISTS sets)
    set(source ${KERNELS_PREFIX}${set}.cpp)
    set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON
      COMPILE_OPTIONS "-O3;-ffp-contract=off;${KERNELS_OPTIONS};${${set}_options}")
    list(APPEND sources ${source})
  endforeach()
  set(${out} ${sources} PARENT_SCOPE)
endfunction()
