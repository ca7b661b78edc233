// Lets a rank of a fault job report to the test, and misbehave.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>

#include "tests/comm/fault_rank.h"
#include "troika/base/clock.h"

namespace troika::comm {

// Writes lines into FOLDER/news, in the form that run_fault_rank() describes.
class FaultReports {
 public:
  FaultReports(const std::filesystem::path& folder, int rank)
      : pipe_(::open((folder / "news").c_str(), O_WRONLY)), rank_(rank) {}

  void tell(double milliseconds, int kind, Clock::time_point when, std::string what) const {
    std::replace(what.begin(), what.end(), '\n', ' ');
    const std::chrono::duration<double, std::milli> at = when.time_since_epoch();
    const auto line = fmt::format("{} {} {:.0f} {} {:.3f} {}\n", rank_, ::getpid(), milliseconds,
                                  kind, at.count(), what);
    if (::write(pipe_, line.data(), line.size()) < 0) ::_exit(9);
  }

 private:
  const int pipe_;
  const int rank_;
};

// Blocks until the test has read the reports of the other ranks and gives its permission.
inline void wait_for_permission(const FaultPlan& plan) {
  const int permission = ::open((plan.folder / "permission").c_str(), O_RDONLY);
  char byte = 0;
  if (::read(permission, &byte, 1) < 0) ::_exit(9);
}

// Performs the victim's fault. Does not return in a rank that is killed; returns in others when the
// test continues the rank or gives its permission.
inline void misbehave(const FaultPlan& plan, const FaultReports& news) {
  if (plan.fault == "kill_unserved") {
    wait_for_permission(plan);
    ::raise(SIGKILL);
  }
  if (plan.fault == "kill" || plan.fault == "stop") {
    news.tell(0, 0, Clock::now(), "victim");
    ::raise(plan.fault == "kill" ? SIGKILL : SIGSTOP);
  }
  if (plan.fault == "delay" || plan.fault == "late" || plan.fault == "vanish") {
    news.tell(0, 0, Clock::now(), "victim");
    wait_for_permission(plan);
  }
}

}  // namespace troika::comm
