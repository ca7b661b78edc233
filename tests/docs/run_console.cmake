# Runs SCRIPT on DOCUMENT in FOLDER, which is made anew.
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})
execute_process(COMMAND python3 ${SCRIPT} ${DOCUMENT} WORKING_DIRECTORY ${FOLDER} RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "failed: ${DOCUMENT}")
endif()
