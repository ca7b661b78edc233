#include "troika/cluster/ranks/stop_signals.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <string_view>
#include <utility>

#include "troika/base/error.h"

namespace troika::cluster {

namespace {

constexpr std::array kStopSignals{SIGUSR1, SIGTERM, SIGINT};

std::atomic<int> stop_asked = 0;
std::atomic<int> meaning_of_usr1 = 0;
std::atomic<bool> interrupted = false;
std::atomic<bool> can_save = false;
std::atomic<bool> listening = false;
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

std::array<struct sigaction, kStopSignals.size()> former_actions;

// This and the following functions run in signal handlers: only async-signal-safe calls.
void tell(std::string_view text) {
  const int error = errno;
  [[maybe_unused]] const auto told = ::write(STDERR_FILENO, text.data(), text.size());
  errno = error;
}

void note_interrupt() {
  const bool is_first = !interrupted.exchange(true);
  if (is_first && can_save) {
    return tell("\nCtrl-C: saving at the end of the step; Ctrl-C again ends at once\n");
  }
  if (is_first) tell("\nCtrl-C before training: there is nothing to save\n");
  ::signal(SIGINT, SIG_DFL);
  ::raise(SIGINT);  // takes effect when this handler returns
}

void note_stop(int signal) {
  if (signal == SIGINT) note_interrupt();
  const int asked =
      signal == SIGUSR1 ? meaning_of_usr1.load() : static_cast<int>(StopRequest::save_and_stop);
  int before = stop_asked;
  while (before < asked && !stop_asked.compare_exchange_weak(before, asked)) {
  }
}

}  // namespace

StopSignals::StopSignals(bool requeue, bool has_state) {
  TROIKA_CHECK(!listening.exchange(true), "two StopSignals in one process at a time");
  stop_asked = static_cast<int>(StopRequest::none);
  interrupted = false;
  can_save = has_state;
  meaning_of_usr1 =
      static_cast<int>(requeue ? StopRequest::save_and_requeue : StopRequest::save_and_stop);
  struct sigaction action {};
  action.sa_handler = note_stop;
  action.sa_flags = SA_RESTART;  // a step's system calls are restarted
  ::sigfillset(&action.sa_mask);
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    ::sigaction(kStopSignals[i], &action, &former_actions[i]);
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kStopSignals.size(); ++i) {
    ::sigaction(kStopSignals[i], &former_actions[i], nullptr);
  }
  listening = false;
}

void StopSignals::begin_saving() const noexcept {
  can_save = true;
}

StopRequest StopSignals::asked() const noexcept {
  return static_cast<StopRequest>(stop_asked.load(std::memory_order_relaxed));
}

}  // namespace troika::cluster
