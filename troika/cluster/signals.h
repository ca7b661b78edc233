// Signals as bytes in a pipe, for a poll() loop. Works whatever threads the process has, where
// signalfd needs the signal blocked in all of them.
#pragma once

#include <vector>

#include "troika/net/descriptor.h"

namespace troika::cluster {

class SignalPipe {
 public:
  // Catches these signals until destroyed, then puts the former handlers back; an ignored SIGHUP
  // (nohup) stays ignored. One at a time in a process.
  explicit SignalPipe(const std::vector<int>& signals);
  ~SignalPipe();
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  int fd() const { return pipe_.read.get(); }
  // The signals since the last call, oldest first.
  std::vector<int> take() const;

 private:
  struct Former;
  net::Pipe pipe_;
  std::vector<Former> former_;
};

}  // namespace troika::cluster
