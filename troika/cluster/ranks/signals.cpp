#include "troika/cluster/ranks/signals.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>

#include "troika/base/error.h"

namespace troika::cluster {

namespace {

std::atomic<int> pipe_end = -1;
static_assert(std::atomic<int>::is_always_lock_free, "used in a signal handler");

void pass_on(int signal) {
  const int error = errno;
  const auto byte = static_cast<unsigned char>(signal);
  // If the pipe is full, the reader has been woken already.
  [[maybe_unused]] const auto told = ::write(pipe_end, &byte, 1);
  errno = error;
}

}  // namespace

struct SignalPipe::Former {
  int signal;
  struct sigaction action;
};

SignalPipe::SignalPipe(const std::vector<int>& signals) : pipe_(net::make_pipe()) {
  TROIKA_CHECK(pipe_end == -1, "two launches in one process at a time");
  net::set_nonblocking(pipe_.read.get());
  net::set_nonblocking(pipe_.write.get());
  pipe_end = pipe_.write.get();
  for (const int signal : signals) {
    struct sigaction action {};
    action.sa_handler = pass_on;
    action.sa_flags = SA_RESTART;
    ::sigfillset(&action.sa_mask);
    Former former{signal, {}};
    ::sigaction(signal, nullptr, &former.action);
    if (signal == SIGHUP && former.action.sa_handler == SIG_IGN) continue;
    ::sigaction(signal, &action, nullptr);
    former_.push_back(former);
  }
}

SignalPipe::~SignalPipe() {
  for (const auto& former : former_) ::sigaction(former.signal, &former.action, nullptr);
  pipe_end = -1;
}

std::vector<int> SignalPipe::take() const {
  std::vector<int> signals;
  std::array<unsigned char, 256> bytes;
  ssize_t got = 0;
  while ((got = ::read(pipe_.read.get(), bytes.data(), bytes.size())) > 0) {
    signals.insert(signals.end(), bytes.begin(), bytes.begin() + got);
  }
  return signals;
}

}  // namespace troika::cluster
