// How a process ended, and the words for it.
#pragma once

#include <string>

namespace troika::cluster {

struct ExitStatus {
  int code = 0;
  int signal = 0;  // that killed it; then code counts for nothing

  bool ok() const { return code == 0 && signal == 0; }
  // It was asked to end and says that it has saved: ExitCode::requeued or ::stopped.
  bool saved() const;
  // The code that a shell would return: 128 + signal for a killed process.
  int as_exit_code() const { return signal ? 128 + signal : code; }
};

// "SIGKILL"; "signal 40" for one without a name.
std::string signal_name(int signal);

// "exit code 2", "killed by SIGKILL (137)".
std::string describe(const ExitStatus& status);

}  // namespace troika::cluster
