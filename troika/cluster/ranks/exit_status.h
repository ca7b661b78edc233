// How a process ended, and its description.
#pragma once

#include <string>

namespace troika::cluster {

struct ExitStatus {
  int code = 0;
  int signal = 0;  // the signal that killed it; `code` is then meaningless

  bool ok() const { return code == 0 && signal == 0; }
  // Whether it ended on request and reports that it has saved: ExitCode::requeued or ::stopped.
  bool saved() const;
  // The code that a shell would return: 128 + signal for a killed process.
  int as_exit_code() const { return signal ? 128 + signal : code; }
};

// Returns e.g. "SIGKILL", or "signal 40" for a signal without a name.
std::string signal_name(int signal);

// Returns e.g. "exit code 2" or "killed by SIGKILL (137)".
std::string describe(const ExitStatus& status);

}  // namespace troika::cluster
