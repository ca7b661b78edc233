// A replica of a batch method: computes portions for a Coordinator.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troika/server/batch/batch_messages.h"
#include "troika/server/worker.h"

namespace troika::server {

struct BatchReplicaOptions {
  std::string coordinator;       // the name of its worker's endpoint
  std::string service = {};      // that of the endpoint where it listens; empty: the same
  std::string parameters = "x";  // tables of float64
  std::string gradient = "g";
  // next() fails if nothing was heard from the scheduler for this time. 0: never.
  net::Duration patience{0};
  // The interval at which reports are sent again.
  net::Duration resend = std::chrono::milliseconds(200);
};

// A service on the endpoint of a worker; both must outlive it. It takes part in the steps of passes
// by callbacks, also while the caller computes a portion: a slow replica does not delay a pass
// whose portions others have computed. It fetches the parameters once in a pass, and pushes the sum
// of its committed gradients once.
class BatchReplica {
 public:
  // A portion to compute, with the parameters for it.
  struct Work {
    uint64_t assignment = 0;
    uint64_t portion = 0;
    int64_t step = -1;
    Handle fetched;

    std::span<const double> parameters() const { return fetched.values<double>(); }
  };

  // The worker must be ready (Worker::wait_until_ready()), and not make steps of its own. Throws
  // Error(server, usage) for tables that are no vectors of float64 with one value for each key.
  BatchReplica(net::Endpoint& endpoint, Worker& worker, BatchReplicaOptions options);
  ~BatchReplica();
  BatchReplica(const BatchReplica&) = delete;
  BatchReplica& operator=(const BatchReplica&) = delete;

  // Asks the coordinator for this round of passes: it begins when all replicas have asked for it.
  // Rounds are counted from 0. Does not block.
  void ask(int64_t round);
  // Whether the coordinator has ended this round.
  bool has_ended(int64_t round);
  // Blocks until there is a portion to compute; nullopt if there will be no more, or no more in the
  // round that was asked for. Throws Error(server): `timeout` after the deadline, `peer` if
  // parameters or gradients were lost, and if the coordinator has failed.
  std::optional<Work> next(Deadline deadline);
  // The same without blocking; nullopt if there is none now.
  std::optional<Work> poll();
  // Gives the result of the portion that next() returned last. `gradient` has as many elements as
  // the parameters. Does not block.
  void finish(const Work& work, double loss, std::vector<double> gradient);
  // Whether the pass of this portion goes on. If not, its result would be dropped, so that the
  // caller may call give_up() in place of finish().
  bool is_wanted(const Work& work);
  void give_up(const Work& work);

 private:
  enum class Phase : uint8_t { idle, beginning, open };

  void take(const BatchOrder& order);
  void begin_pass();
  // Fetches the parameters if the coordinator has begun the pass of the open step.
  void fetch();
  void end_pass();
  std::optional<Work> take_work();
  // Calls `act` when the call has succeeded; otherwise next() fails.
  void after(const Handle& call, std::function<void()> act);
  const std::string& service() const {
    return options_.service.empty() ? options_.coordinator : options_.service;
  }
  // Why no portion can come; empty if one can.
  std::string problem();
  void report();
  void tick();

  net::Endpoint& endpoint_;
  Worker& worker_;
  const BatchReplicaOptions options_;
  BatchOrder order_;               // the newest one
  int64_t begun_ = -1;             // the last step that has begun
  Phase phase_ = Phase::idle;      // of that step
  int64_t fetching_ = -1;          // the step for which parameters were asked for
  std::optional<Handle> fetched_;  // the parameters of the open step, finished
  uint64_t taken_ = 0;             // the last assignment that next() has returned
  BatchReport report_;
  std::vector<double> result_;  // the gradient of assignment report_.finished, until it is judged
  std::vector<double> sum_;     // of the committed gradients of the open step
  std::string failure_;
  // Callbacks of calls that end after this object do nothing.
  std::shared_ptr<bool> exists_ = std::make_shared<bool>(true);
  net::Ticket timer_ = 0;
};

}  // namespace troika::server
