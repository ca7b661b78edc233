# Runs SCRIPT with ARGUMENTS in FOLDER, which is made anew.
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})
execute_process(COMMAND python3 ${SCRIPT} ${ARGUMENTS} WORKING_DIRECTORY ${FOLDER} RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "failed: ${ARGUMENTS}")
endif()
