#include "troika/cluster/ranks/exit_status.h"

#include <fmt/format.h>
#include <signal.h>

#include <array>
#include <utility>

#include "troika/base/exit_code.h"

namespace troika::cluster {

bool ExitStatus::saved() const {
  return signal == 0 && (code == static_cast<int>(ExitCode::requeued) ||
                         code == static_cast<int>(ExitCode::stopped));
}

std::string signal_name(int signal) {
  // sigabbrev_np() is too new for older clusters.
  static constexpr std::array<std::pair<int, const char*>, 18> kNames{{
      {SIGHUP, "SIGHUP"},
      {SIGINT, "SIGINT"},
      {SIGQUIT, "SIGQUIT"},
      {SIGILL, "SIGILL"},
      {SIGTRAP, "SIGTRAP"},
      {SIGABRT, "SIGABRT"},
      {SIGBUS, "SIGBUS"},
      {SIGFPE, "SIGFPE"},
      {SIGKILL, "SIGKILL"},
      {SIGUSR1, "SIGUSR1"},
      {SIGSEGV, "SIGSEGV"},
      {SIGUSR2, "SIGUSR2"},
      {SIGPIPE, "SIGPIPE"},
      {SIGALRM, "SIGALRM"},
      {SIGTERM, "SIGTERM"},
      {SIGXCPU, "SIGXCPU"},
      {SIGXFSZ, "SIGXFSZ"},
      {SIGSYS, "SIGSYS"},
  }};
  for (const auto& [number, name] : kNames) {
    if (number == signal) return name;
  }
  return fmt::format("signal {}", signal);
}

std::string describe(const ExitStatus& status) {
  if (status.signal) {
    return fmt::format("killed by {} ({})", signal_name(status.signal), status.as_exit_code());
  }
  return fmt::format("exit code {}", status.code);
}

}  // namespace troika::cluster
