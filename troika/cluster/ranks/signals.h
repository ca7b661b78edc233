// Delivers signals as bytes in a pipe, for a poll() loop. Unlike signalfd, does not require the
// signals to be blocked in all threads.
#pragma once

#include <vector>

#include "troika/net/descriptor.h"

namespace troika::cluster {

class SignalPipe {
 public:
  // Catches these signals until destroyed, then restores the previous handlers. An ignored SIGHUP
  // (nohup) stays ignored. Only one per process at a time.
  explicit SignalPipe(const std::vector<int>& signals);
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  int fd() const { return pipe_.read.get(); }
  // Returns the signals since the last call, oldest first.
  std::vector<int> take() const;

 private:
  struct Former;
  net::Pipe pipe_;
  std::vector<Former> former_;
};

}  // namespace troika::cluster
