// The implementation of launch(): one poll() loop over signals and the ranks' outputs. See
// launcher.h.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "troika/cluster/elastic/agent.h"
#include "troika/cluster/launch/guardian.h"
#include "troika/cluster/launch/launch_report.h"
#include "troika/cluster/launch/launcher.h"
#include "troika/cluster/ranks/output.h"
#include "troika/cluster/ranks/process.h"
#include "troika/cluster/ranks/rank_environment.h"
#include "troika/cluster/ranks/rank_output.h"
#include "troika/cluster/ranks/signals.h"

namespace troika::cluster {

class Supervisor {
 public:
  explicit Supervisor(const LaunchOptions& options);
  ~Supervisor();  // kills all remaining processes
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  int run();

 private:
  int run_alone();
  // Runs as one launch of an elastic run.
  int run_elastic();
  // running: until the first failure. settling: waits for other ranks to fail by themselves.
  // stopping: after a signal to the ranks. killing: after SIGKILL.
  enum class Phase { running, grace, stopping, killing };

  struct Rank {
    pid_t pid = 0;  // 0 until started
    RankOutput output;
    bool ended = false;
    RankEnd end = {};
  };

  void prepare_log_dir();
  void remove_own_logs() const;
  void start_rank(int local_rank, const LaunchPlace& place);
  // Starts all ranks. If the program cannot be executed, prints the error, ends the started ranks
  // and returns false.
  bool start_round(const LaunchPlace& place);
  std::filesystem::path error_file(int rank) const;
  // The folder for flight records of failing ranks.
  std::filesystem::path flight_record() const;
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
  // Children that are not ranks: adopted orphans of ranks.
  std::vector<pid_t> strays() const;
  void sweep();
  void drain();
  bool all_ended() const;
  // Returns how the ranks of the round ended, and removes them.
  std::vector<RankEnd> end_round();
  bool may_restart(const std::vector<RankEnd>& ends, int restarts) const;
  void say_stopped() const;
  int conclude(const std::vector<RankEnd>& ends);
  int conclude_elastic(const std::vector<RankEnd>& ends);

  const LaunchOptions options_;
  const RunSecret secret_;
  std::filesystem::path log_dir_;
  bool own_log_dir_ = false;
  bool have_ranks_run_ = false;  // in any round; logs then exist
  SignalPipe signals_;
  Subreaper subreaper_;
  const std::vector<pid_t> children_before_;
  std::optional<Guardian> guardian_;
  Outlet out_, err_;
  std::optional<Agent> agent_;  // only in an elastic run
  std::vector<std::unique_ptr<Rank>> ranks_;
  Phase phase_ = Phase::running;
  std::optional<Deadline> phase_end_;
  int stop_signal_ = 0;  // the signal that told the launcher to end
  bool told_twice_ = false;
};

}  // namespace troika::cluster
