// Runs a program as a user would, and looks at all it leaves behind.
#pragma once

#include <string>

namespace troika::testing_support {

struct Outcome {
  int exit_code = -1;  // 128 + signal for a killed one; -1 when it did not end within 30 seconds
  std::string out;
  std::string err;
  int orphans = 0;  // processes it left running; they are killed
};

// `command` is for /bin/sh, with the environment of this process.
Outcome run_program(const std::string& command);

}  // namespace troika::testing_support
