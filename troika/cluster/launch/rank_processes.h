// The ranks of one launch as processes: signals to them, how they end, and what they leave running.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troika/cluster/launch/guardian.h"
#include "troika/cluster/launch/launch_report.h"
#include "troika/cluster/ranks/process.h"
#include "troika/cluster/ranks/rank_output.h"

namespace troika::cluster {

struct RankProcess {
  pid_t pid;  // also the id of its process group
  RankOutput output;
  bool has_ended = false;
  RankEnd end = {};
};

// Ended ranks stay zombies until reap(), so that the ids of their process groups are not reused.
class RankProcesses {
 public:
  RankProcesses() = default;
  ~RankProcesses();  // kills and reaps the ranks
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Prepares for `count` ranks.
  void begin(int count) { guardian_.emplace(count); }
  void add(int rank, std::string role, Child child, RankOutput output);
  // Forgets the ranks of a round.
  void clear() { ranks_.clear(); }

  const std::vector<std::unique_ptr<RankProcess>>& all() const { return ranks_; }
  bool have_ended() const;

  // Notes the ranks that have ended since the last call, and reaps processes that they left.
  // Returns whether one of the ranks failed.
  bool note_ended();
  // Forgets processes that have ended and whose outputs are read, if another process has their rank
  // now. No process that they started survives. Returns their ids.
  std::vector<pid_t> drop_replaced();
  // Sends a signal to the programs of the running ranks, not to their child processes.
  void forward(int signal) const;
  // Tells the process groups of the running ranks to end.
  void stop(int signal);
  void kill();
  // The same with the process group of one rank, if it runs.
  void kill(pid_t pid);
  // Sends SIGKILL to the process groups of all ranks, also of those that have ended.
  void kill_groups() const;
  // Sends SIGKILL to orphans of the ranks, which are now children of this process, and reaps those
  // that have ended. Returns whether there were orphans, and whether some still run.
  enum class Strays { none, ended, running };
  Strays kill_strays() const;
  void reap() const;

 private:
  // Children that are not ranks.
  std::vector<pid_t> strays() const;

  Subreaper subreaper_;
  const std::vector<pid_t> children_before_ = children();
  std::optional<Guardian> guardian_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
};

}  // namespace troika::cluster
