# Installs the build tree BUILD under FOLDER/prefix, moves that to FOLDER/moved, looks for documents in
# DOC there and runs the installed PROGRAM, then configures and builds the project SOURCE in FOLDER/build against it, with
# the LibTorch in TORCH_DIR, packages in PREFIX_PATH and the sanitizers of BUILD.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "failed: ${ARGN}")
  endif()
endfunction()

file(REMOVE_RECURSE ${FOLDER}/prefix ${FOLDER}/moved)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${FOLDER}/prefix)
file(RENAME ${FOLDER}/prefix ${FOLDER}/moved)
run(${FOLDER}/moved/${PROGRAM} version)
run(${FOLDER}/moved/${PROGRAM} slurm make --print --site=jean-zay -p cpu_p1 -- true)

foreach(file LICENSE README.md CHANGELOG.md docs/tutorial.md docs/api.md docs/extending.md examples/quickstart.toml examples/own_loop/CMakeLists.txt)
  if(NOT EXISTS ${FOLDER}/moved/${DOC}/${file})
    message(FATAL_ERROR "${DOC}/${file} is not installed")
  endif()
endforeach()

set(prefixes ${FOLDER}/moved ${PREFIX_PATH})
string(REPLACE ";" "\\;" prefixes "${prefixes}")
if(SANITIZE)
  set(flags -fsanitize=${SANITIZE})
endif()
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${FOLDER}/build -G Ninja
    -D CMAKE_CXX_COMPILER=${COMPILER} "-DCMAKE_CXX_FLAGS=${flags}"
    "-DCMAKE_PREFIX_PATH=${prefixes}" -D Torch_DIR=${TORCH_DIR})
run(${CMAKE_COMMAND} --build ${FOLDER}/build)
