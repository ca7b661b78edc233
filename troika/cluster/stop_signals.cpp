#include "troika/cluster/stop_signals.h"

#include <signal.h>

#include <array>
#include <atomic>
#include <utility>

#include "troika/base/error.h"

namespace troika::cluster {

namespace {

constexpr std::array kStopSignals{SIGUSR1, SIGTERM};

std::atomic<int> stop_asked = 0;
std::atomic<int> meaning_of_usr1 = 0;
std::atomic<bool> listening = false;
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

std::array<struct sigaction, kStopSignals.size()> former_actions;

void note_stop(int signal) {
  const int asked =
      signal == SIGUSR1 ? meaning_of_usr1.load() : static_cast<int>(StopRequest::save_and_stop);
  int before = stop_asked;
  while (before < asked && !stop_asked.compare_exchange_weak(before, asked)) {
  }
}

}  // namespace

StopSignals::StopSignals(bool requeue) {
  TROIKA_CHECK(!listening.exchange(true), "two StopSignals in one process at a time");
  stop_asked = static_cast<int>(StopRequest::none);
  meaning_of_usr1 =
      static_cast<int>(requeue ? StopRequest::save_and_requeue : StopRequest::save_and_stop);
  struct sigaction action {};
  action.sa_handler = note_stop;
  action.sa_flags = SA_RESTART;  // a step's reads and waits go on
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

StopRequest StopSignals::asked() const noexcept {
  return static_cast<StopRequest>(stop_asked.load(std::memory_order_relaxed));
}

}  // namespace troika::cluster
