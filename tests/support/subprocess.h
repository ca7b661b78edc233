// Runs a program as a user would, and returns its exit code and output.
#pragma once

#include <string>

namespace troika::testing_support {

struct Outcome {
  int exit_code = -1;  // 128 + signal for a killed one; -1 when it did not end within 30 seconds
  std::string out;
  std::string err;
  int orphans = 0;  // processes it left running; they are killed
};

// Runs `command` by /bin/sh, with the environment of this process.
Outcome run_program(const std::string& command);

}  // namespace troika::testing_support
