// The implementation of launch(): one poll() loop over signals and the ranks' outputs. See
// launcher.h.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
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
  // Runs the processes of a parameter server.
  int run_roles();
  // Runs replicas that go on without each other, and their lighthouse.
  int run_replicas();
  // Runs as one launch of an elastic run.
  int run_elastic();
  // running: until the first failure. grace: waits for other ranks to fail by themselves.
  // stopping: after a signal to the ranks. killing: after SIGKILL.
  enum class Phase { running, grace, stopping, killing };

  // A process to start.
  struct StartedProcess {
    std::string name;  // for messages
    std::string stem;  // the beginning of the names of its files
    int number = 0;    // the rank, or the number among the processes of a parameter server
    RankOutput::Log log{};
    bool is_shown = false;  // its outputs are forwarded unchanged
    // Returns the environment, for a given file for the error report.
    std::function<std::vector<std::string>(const std::filesystem::path&)> environment;
  };
  // Returns the process of a number, from 0.
  using Processes = std::function<StartedProcess(int)>;

  Processes ranks_at(const LaunchPlace& place) const;
  void start(const StartedProcess& process);
  // Starts all processes. If the program cannot be executed, prints the error, ends the started
  // ones and returns false.
  bool start_round(const Processes& processes);
  void loop();
  // Runs a round to its end. nullopt if the program cannot be executed.
  std::optional<std::vector<RankEnd>> complete_round(const Processes& processes);
  // Blocks until the next round; nullopt if the run is over or this launch was told to end.
  std::optional<LaunchPlace> await_round();
  // Ends the round when the other launches do.
  void follow_others();
  void begin_grace_time();
  // Performs one poll() and handles its events. Blocks at most this long.
  void step(Milliseconds at_most);
  void handle_signal(int signal);
  void look_for_ended();
  // After the end of some process of a parameter server: announces it, and ends the launch after
  // the last worker or with the scheduler.
  void follow_roles();
  // After the end of some replica: announces it, and plans another process in its place.
  void follow_replicas();
  // Starts the planned processes whose time has come, and kills replicas that have lost their place
  // but do not end. Returns the time until the next call, of a fault-tolerant launch.
  Milliseconds attend_replicas();
  std::vector<RankEnd> without_servers(std::vector<RankEnd> ends) const;
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
  std::map<int, std::string> stems_;  // of the processes' files
  // The processes of a parameter server, and replicas, outlive each other.
  struct {
    std::set<pid_t> announced;  // whose end was noted
    bool keeps_logs = false;    // one of them failed, and the launch may succeed
    // Only of replicas:
    int restarts = 0;
    Processes next;                                      // the process that takes a replica's place
    std::vector<std::pair<Deadline, int>> planned;       // the times and ranks of such processes
    std::function<std::vector<int64_t>()> take_refused;  // groups that lost their place
    std::map<pid_t, Deadline> refused;  // until when such groups may end by themselves
  } outlived_;
};

}  // namespace troika::cluster
