// Real signals, in separate processes.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/cluster/ranks/stop_signals.h"
#include "troika/net/descriptor.h"

namespace troika::cluster {
namespace {

// A signal that a process sends itself has been handled when kill() returns.
void send_self(int signal) {
  ::kill(::getpid(), signal);
}

TEST(StopSignals, SayWhatIsAsked) {
  StopSignals signals(true);
  EXPECT_EQ(signals.asked(), StopRequest::none);
  send_self(SIGUSR1);
  EXPECT_EQ(signals.asked(), StopRequest::save_and_requeue);
  send_self(SIGUSR1);
  EXPECT_EQ(signals.asked(), StopRequest::save_and_requeue);
  send_self(SIGTERM);
  EXPECT_EQ(signals.asked(), StopRequest::save_and_stop);
  send_self(SIGUSR1);
  EXPECT_EQ(signals.asked(), StopRequest::save_and_stop) << "stopping wins";
}

TEST(StopSignals, CtrlCAsksToStopAndASecondOneEndsTheProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    StopSignals signals(true);
    send_self(SIGINT);
    if (signals.asked() != StopRequest::save_and_stop) ::_exit(1);
    send_self(SIGINT);
    ::_exit(2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << "exit code " << WEXITSTATUS(status);
  EXPECT_EQ(WTERMSIG(status), SIGINT);
}

TEST(StopSignals, WithoutRequeueingBothMeanToStop) {
  StopSignals signals(false);
  send_self(SIGUSR1);
  EXPECT_EQ(signals.asked(), StopRequest::save_and_stop);
}

TEST(StopSignals, EveryObjectStartsAnew) {
  {
    StopSignals first(true);
    send_self(SIGTERM);
  }
  EXPECT_EQ(StopSignals(true).asked(), StopRequest::none);
}

int handled = 0;

TEST(StopSignals, FormerHandlersComeBack) {
  struct sigaction former {
  }, own{};
  own.sa_handler = [](int signal) { handled = signal; };
  ::sigaction(SIGTERM, &own, &former);
  {
    StopSignals signals(true);
    send_self(SIGTERM);
    EXPECT_EQ(handled, 0);
  }
  send_self(SIGTERM);
  EXPECT_EQ(handled, SIGTERM);
  ::sigaction(SIGTERM, &former, nullptr);
}

TEST(StopSignals, AtTheirEndASignalEndsTheProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    { StopSignals signals(true); }
    send_self(SIGUSR1);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1);
}

TEST(StopSignals, OneAtATime) {
  StopSignals signals(true);
  EXPECT_THROW(StopSignals(true), CheckError);
}

// Whether the process waits in a system call with all signals handled, or has ended.
bool has_settled(pid_t pid) {
  const auto status = read_file("/proc/" + std::to_string(pid) + "/status");
  const bool handled = status.find("ShdPnd:\t0000000000000000") != std::string::npos;
  return handled && (status.find("State:\tS") != std::string::npos ||
                     status.find("State:\tZ") != std::string::npos);
}

void wait_until_settled(pid_t pid) {
  const auto deadline = Deadline::after(std::chrono::seconds(10));
  while (!has_settled(pid)) ASSERT_FALSE(deadline.passed());
}

// The signal does not interrupt a step that waits for another rank.
TEST(StopSignals, ASignalFromOutsideDoesNotInterruptAStep) {
  net::Pipe to_child = net::make_pipe(), from_child = net::make_pipe();
  const pid_t child = ::fork();
  if (child == 0) {
    StopSignals signals(true);
    char byte = 'r';
    if (::write(from_child.write.get(), &byte, 1) != 1) ::_exit(90);
    while (signals.asked() == StopRequest::none) {
      if (::read(to_child.read.get(), &byte, 1) != 1) ::_exit(91);
    }
    ::_exit(static_cast<int>(signals.asked()));
  }
  char byte = 0;
  ASSERT_EQ(::read(from_child.read.get(), &byte, 1), 1);
  wait_until_settled(child);
  ::kill(child, SIGUSR1);
  wait_until_settled(child);
  ASSERT_EQ(::write(to_child.write.get(), "x", 1), 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(StopRequest::save_and_requeue));
}

}  // namespace
}  // namespace troika::cluster
