// Gradients or parameters of simulated ranks on their way to summation servers and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "troika/layout/summation.h"
#include "troika/plan/simulation/served_ranks.h"

namespace troika::plan {

// Exchanges the buckets of a stage partition by partition, as runs do: a worker pushes the waiting
// partition with the highest priority for which it has credit, and whose server it does not lead
// too far. A server adds the pushes of all workers and returns the mean to each; in the
// asynchronous mode, it adds one push and returns the values at once.
//
// Partitions that are under way share links, also those between the same two devices. So a server
// gets its part of a rank's link in proportion to the partitions that the rank may push ahead.
class PartitionSums {
 public:
  struct Calls {
    // A push has been added, and its answer leaves. Only in the asynchronous mode.
    std::function<void(int rank, size_t partition)> added;
    // All of a bucket is at the worker.
    std::function<void(int rank, size_t bucket)> landed;
  };

  // The workers are SimulatedRun::summation_workers(); other ranks call nothing. `ranks` must
  // outlive it.
  PartitionSums(ServedRanks& ranks, Calls calls);

  size_t buckets() const { return missing_.front().size(); }
  // Whether the worker has all of a bucket that it pushed.
  bool has_landed(int rank, size_t bucket) const {
    return missing_[static_cast<size_t>(rank)][bucket] == 0;
  }
  void push(int rank, size_t bucket);

 private:
  struct Client {
    // The partitions that wait, by -priority.
    std::set<std::pair<int64_t, size_t>> queue = {};
    int64_t in_flight = 0;                  // bytes that servers have not confirmed
    std::vector<int64_t> pushed = {};       // bytes, by server
    std::vector<int64_t> levels = {};       // by server: those that the slowest worker has pushed
    std::vector<double> bucket_begin = {};  // when it was pushed
  };
  struct Server {
    int device = 0;
    std::vector<int64_t> arrived = {};  // bytes, by rank
    int64_t level = 0;                  // the least of workers'
  };

  const layout::SummationExchange& options() const { return ranks_.run().plan.exchange.summation; }
  Client& client(int rank) { return clients_[static_cast<size_t>(rank)]; }
  bool may_lead(const Client& client, const layout::Partition& partition) const;
  void dispatch(int rank);
  void send(int rank, size_t partition);
  void arrive(int rank, size_t partition);
  void raise_level(size_t server);
  void answer(int rank, size_t partition);
  void land(int rank, size_t partition);

  ServedRanks& ranks_;
  const Calls calls_;
  const std::vector<int> workers_;
  std::vector<layout::Partition> partitions_;
  std::vector<int64_t> lead_bytes_;           // by server; empty: no limit
  std::vector<std::vector<size_t>> missing_;  // partitions, by rank and bucket
  std::vector<size_t> pushes_;                // of a partition that wait for those of others
  std::vector<Client> clients_;               // by rank
  std::vector<Server> servers_;
  ServerQueues queues_;
};

}  // namespace troika::plan
