# How tests are built and what ctest runs.

# Every rank and every test gets one thread.
set(TROIKA_TEST_ENVIRONMENT OMP_NUM_THREADS=1 XDG_CONFIG_HOME=${PROJECT_BINARY_DIR}/config)

# troika_test_program(TARGET [TORCH] SOURCES ... LIBRARIES ...): a program with GoogleMock, with LibTorch
# or without. Where TROIKA_UNITY is on, its sources are compiled several at a time.
function(troika_test_program target)
  cmake_parse_arguments(PROGRAM "TORCH" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${target} ${PROGRAM_SOURCES})
  target_link_libraries(${target} PRIVATE troika_options ${PROGRAM_LIBRARIES} GTest::gmock)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  if(PROGRAM_TORCH)
    target_precompile_headers(${target} REUSE_FROM tests_torch_headers)
  else()
    target_precompile_headers(${target} REUSE_FROM tests_headers)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${TROIKA_UNITY} UNITY_BUILD_BATCH_SIZE 16)
endfunction()

# troika_test(ROOM [TORCH] [SHARDS n | ALONE] SOURCES ... [DEPENDS ...]): the test program test_ROOM, which
# runs as n processes (one unless told), or as one process for each case.
function(troika_test room)
  cmake_parse_arguments(TEST "TORCH;ALONE" "SHARDS" "SOURCES;DEPENDS" ${ARGN})
  set(torch "")
  if(TEST_TORCH)
    set(torch TORCH)
  endif()
  troika_test_program(test_${room} ${torch} SOURCES ${TEST_SOURCES}
                      LIBRARIES troika::${room} ${TEST_DEPENDS} GTest::gtest_main)
  if(TEST_ALONE)
    troika_add_cases(test_${room} PREFIX ${room}. PROPERTIES TIMEOUT 300)
  else()
    troika_add_shards(test_${room} PREFIX ${room}. SHARDS ${TEST_SHARDS} PROPERTIES TIMEOUT 300)
  endif()
endfunction()

# troika_add_shards(TARGET PREFIX prefix [SHARDS n] [PROPERTIES ...]): the cases of a test program in n
# tests of ctest, because loading LibTorch takes longer than most cases. The output names the case that
# failed.
function(troika_add_shards target)
  cmake_parse_arguments(ADD "" "PREFIX;SHARDS" "PROPERTIES" ${ARGN})
  if(NOT ADD_SHARDS)
    set(ADD_SHARDS 1)
  endif()
  foreach(number RANGE 1 ${ADD_SHARDS})
    math(EXPR index "${number} - 1")
    set(name ${ADD_PREFIX}${number}of${ADD_SHARDS})
    add_test(NAME ${name} COMMAND ${target} --gtest_brief=1)
    set_tests_properties(${name} PROPERTIES
      ENVIRONMENT "${TROIKA_TEST_ENVIRONMENT};GTEST_TOTAL_SHARDS=${ADD_SHARDS};GTEST_SHARD_INDEX=${index}"
      ${ADD_PROPERTIES})
  endforeach()
endfunction()

# troika_add_cases(TARGET PREFIX prefix [ONE_CORE suites] [PROPERTIES ...]): one test of ctest, and with it
# a process, for each case of a test program: where cases need that, or take long. Cases of the suites that
# match the regular expression ONE_CORE run beside other tests, whatever PROPERTIES says of PROCESSORS.
function(troika_add_cases target)
  cmake_parse_arguments(ADD "" "PREFIX;ONE_CORE" "PROPERTIES" ${ARGN})
  set(program ${CMAKE_CURRENT_BINARY_DIR}/${target})
  list(JOIN ADD_PROPERTIES " " properties)
  set(script ${CMAKE_CURRENT_BINARY_DIR}/${target}-tests.cmake)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/tests.cmake.in ${script} @ONLY)
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${script})
endfunction()

# troika_ranks_test(NAME BACKEND shm|tcp|gloo|mpi RANKS n COMMAND target args ...): a ctest that runs a
# program as n processes, started by mpirun for mpi and by start_ranks for the others. A back end
# that is not built has no such test.
function(troika_ranks_test name)
  cmake_parse_arguments(RANKS "" "BACKEND;RANKS" "COMMAND" ${ARGN})
  list(POP_FRONT RANKS_COMMAND program)
  if(RANKS_BACKEND STREQUAL "mpi")
    if(NOT MPI_CXX_FOUND)
      return()
    endif()
    # As root, in a container, and with more ranks than cores: all usual in tests.
    add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} --allow-run-as-root --oversubscribe
             -n ${RANKS_RANKS} $<TARGET_FILE:${program}> ${RANKS_COMMAND})
  else()
    if(RANKS_BACKEND STREQUAL "gloo" AND NOT TROIKA_WITH_GLOO)
      return()
    endif()
    add_test(NAME ${name} COMMAND start_ranks 1 ${RANKS_RANKS}
             $<TARGET_FILE:${program}> ${RANKS_COMMAND})
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 PROCESSORS 2
    ENVIRONMENT "${TROIKA_TEST_ENVIRONMENT};TROIKA_FLIGHT_RECORD=${PROJECT_BINARY_DIR}/flight-record")
endfunction()
