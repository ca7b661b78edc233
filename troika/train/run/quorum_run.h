// The place of a replica in a run of strategy ft_ddp, or of diloco under a launch with a
// lighthouse: docs/fault-tolerance.md, docs/diloco.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "troika/base/temporary_folder.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/layout/plan.h"
#include "troika/net/dial.h"
#include "troika/net/secret.h"
#include "troika/quorum/lighthouse_server.h"
#include "troika/quorum/member.h"
#include "troika/train/options/options.h"
#include "troika/train/run/run_folder.h"

namespace troika::train {

// Whether the options' strategy is ft_ddp, whose replicas are always in runs of their own: each has
// a group of one rank.
bool trains_in_quorum(const TrainOptions& options);

struct QuorumPlace {
  int rank = 0;
  int replicas = 1;
  // Empty: this process has the lighthouse, for a single replica, and can train several times.
  std::optional<net::Address> lighthouse = {};
  net::Secret secret = net::Secret::random();
};
// Returns the place that a launcher gave this process. Throws Error(train, usage) for several
// replicas without TROIKA_LIGHTHOUSE, which is HOST:PORT.
QuorumPlace find_quorum_place(const cluster::Environment& environment,
                              const cluster::Variables& variables = cluster::process_variable);

// Not thread-safe. All functions block. For one run.
class QuorumRun {
 public:
  // Connects to the lighthouse. Throws Error(train, usage) for options that the strategy does not
  // support.
  QuorumRun(const TrainOptions& options, const QuorumPlace& place);

  // Agrees with the other replicas on the folder of the run, which the first of them claims. Makes
  // `options` those of this replica's own run: the same global batch, and for rank i > 0 the folder
  // replicas/i in that folder.
  RunFolder claim(TrainOptions& options);
  // Joins the other replicas, and sets trainer.ckpt_path: to their state if they have begun.
  // finished: the run is. stopped: `stops`, as of quorum::Member::begin_step(), returned true.
  enum class Joined { trains, finished, stopped };
  Joined join(TrainOptions& options, const std::function<bool()>& stops);
  // Returns this replica's part of the step's global batch. With DiLoCo, waits for a quorum only
  // after an outer step, and at the start. `save` writes a checkpoint of the
  // current state below a folder, and returns it; called if another replica begins with it. Returns
  // nullopt if `stops` returned true first: see quorum::Member::begin_step().
  std::optional<quorum::Share> begin_step(
      int64_t step, const std::function<std::filesystem::path(const std::filesystem::path&)>& save,
      const std::function<bool()>& stops);
  // Called after the last step of the run. Returns whether this replica must save the end of it:
  // see quorum::Member::must_save().
  bool must_save(const std::function<bool()>& stops);
  // Must be called at the end of a run that has not failed. `is_finished`: it was not stopped.
  void leave(bool is_finished);
  // Must be called after a failure, at once: the others do not wait for this replica then.
  void abandon();
  bool has_left() const { return has_left_; }
  // Throws Error(train, usage) unless this process may train again after this run: the lighthouse
  // of a launch is for one run.
  void require_again() const;

  quorum::Member& member() { return *member_; }
  // Whether this replica has its state from no other.
  bool founds() const { return founds_; }
  // Whether this replica writes the checkpoints of the run: that of the lowest rank does.
  bool writes();
  // Returns the folder of the checkpoints of all replicas.
  const std::filesystem::path& checkpoints() const { return checkpoints_; }

 private:
  // A round is the inner steps from one sum to the next one; one step without DiLoCo.
  struct Rounds {
    int64_t steps = 1;
    int64_t delay = 0;   // steps that replicas make after they have sent
    int64_t begun = -1;  // the latest
    quorum::Share share = {};
  };

  const QuorumPlace place_;
  Rounds rounds_;
  std::optional<quorum::LighthouseServer> own_lighthouse_;
  std::optional<quorum::Member> member_;
  std::filesystem::path checkpoints_;
  std::optional<TemporaryFolder> received_;  // the donor's state, until the first step
  bool founds_ = false;
  bool saves_ = false;  // the end of the run
  bool has_left_ = false;
};

// Returns this process's place among the replicas of strategy ft_ddp, or of diloco if it was
// launched with a lighthouse; null with another strategy. Throws Error(train, usage) for another
// strategy under a launch of such replicas, and like find_quorum_place() and QuorumRun.
std::shared_ptr<QuorumRun> make_quorum_run(
    const TrainOptions& options, const cluster::Environment& environment,
    const cluster::Variables& variables = cluster::process_variable);

// Throws Error(train, usage) if this process was launched as a replica. `what` was launched.
void require_no_lighthouse(const std::string& what,
                           const cluster::Variables& variables = cluster::process_variable);

}  // namespace troika::train
