// The implementation of launch(): one poll() loop over signals and the ranks' outputs. See
// launcher.h.
#pragma once

#include <optional>
#include <vector>

#include "troika/cluster/elastic/agent.h"
#include "troika/cluster/launch/launch_report.h"
#include "troika/cluster/launch/launcher.h"
#include "troika/cluster/launch/log_folder.h"
#include "troika/cluster/launch/rank_processes.h"
#include "troika/cluster/ranks/output.h"
#include "troika/cluster/ranks/rank_environment.h"
#include "troika/cluster/ranks/signals.h"

namespace troika::cluster {

class Supervisor {
 public:
  explicit Supervisor(const LaunchOptions& options);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  int run();

 private:
  int run_alone();
  // Runs as one launch of an elastic run.
  int run_elastic();
  // running: until the first failure. grace: waits for other ranks to fail by themselves.
  // stopping: after a signal to the ranks. killing: after SIGKILL.
  enum class Phase { running, grace, stopping, killing };

  void start_rank(int local_rank, const LaunchPlace& place);
  // Starts all ranks. If the program cannot be executed, prints the error, ends the started ranks
  // and returns false.
  bool start_round(const LaunchPlace& place);
  void loop();
  // Runs a round to its end. nullopt if the program cannot be executed.
  std::optional<std::vector<RankEnd>> complete_round(const LaunchPlace& place);
  // Blocks until the next round; nullopt if the run is over or this launch was told to end.
  std::optional<LaunchPlace> await_round();
  // Ends the round when the other launches do.
  void follow_others();
  void begin_grace_time();
  // Performs one poll() and handles its events. Blocks at most this long.
  void step(Milliseconds at_most);
  void handle_signal(int signal);
  void look_for_ended();
  void advance();
  void stop_all(int signal);
  void kill_all();
  void sweep();
  void drain();
  // Returns how the ranks of the round ended, and removes them.
  std::vector<RankEnd> end_round();
  bool may_restart(const std::vector<RankEnd>& ends, int restarts) const;
  void say_stopped() const;
  int conclude(const std::vector<RankEnd>& ends);
  int conclude_elastic(const std::vector<RankEnd>& ends);

  const LaunchOptions options_;
  const RunSecret secret_;
  LogFolder logs_;
  SignalPipe signals_;
  Outlet out_, err_;
  RankProcesses processes_;
  std::optional<Agent> agent_;  // only in an elastic run
  Phase phase_ = Phase::running;
  std::optional<Deadline> phase_end_;
  int stop_signal_ = 0;  // the signal that told the launcher to end
  bool told_twice_ = false;
};

}  // namespace troika::cluster
