// Gradients of simulated ranks on their way to summation servers, with sums inside hosts.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "troika/plan/simulation/collectives.h"
#include "troika/plan/simulation/partition_sums.h"

namespace troika::plan {

// Exchanges buckets by PartitionSums. Where SimulatedRun::sums_on_hosts(), a host sums a bucket
// when all of its ranks have pushed it, one bucket after the other. Its first rank exchanges the
// sum, and gives the mean to the others when all of them have asked for one (parallel::LocalSums).
// Other ranks are on hosts of their own in this sense.
class HostSums {
 public:
  struct Calls {
    // PartitionSums::Calls::added.
    std::function<void(int rank, size_t partition)> added;
    // The rank has the mean of a bucket for which it asked.
    std::function<void(int rank, size_t bucket)> taken;
  };

  // `ranks` must outlive it.
  HostSums(ServedRanks& ranks, Calls calls);

  size_t buckets() const { return sums_.buckets(); }
  // All ranks of a host push buckets in the same order.
  void push(int rank, size_t bucket);
  // Asks for the mean of one of these buckets, which the rank has pushed: the first one that is
  // there. The rank waits for it. All ranks of a host ask for the same ones in the same order.
  void take(int rank, const std::vector<size_t>& buckets);

 private:
  struct Pushed {
    size_t bucket = 0;
    size_t missing = 0;  // ranks that have not pushed it
  };
  struct Host {
    std::vector<int> ranks = {};
    std::deque<Pushed> unsummed = {};
    bool is_summing = false;  // the first one of these
    size_t asking = 0;        // ranks
    std::vector<size_t> asked = {};
  };

  Host& host_of(int rank) { return hosts_[host_of_[static_cast<size_t>(rank)]]; }
  void sum(Host& host);
  // Gives the next mean that all ranks of the host have asked for, if it is there.
  void give(Host& host);
  void end_give(const Host& host, size_t bucket);
  // Returns the phase of a bucket's sum on a host, or of giving its mean.
  CollectivePhase phase(const Host& host, size_t bucket, bool is_before) const;
  void move(const CollectivePhase& phase, Timeline::Call ends);

  ServedRanks& ranks_;
  const Calls calls_;
  PartitionSums sums_;
  std::vector<Host> hosts_;
  std::vector<size_t> host_of_;  // by rank
  std::vector<bool> waits_;      // by rank; those whose mean is there at once do not
};

}  // namespace troika::plan
