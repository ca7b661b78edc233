// Averages in two levels: ranks of one machine sum their gradients, and summation servers average
// the machines' sums (BytePS: Jiang et al., OSDI 2020, section 4.2).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "troika/comm/group.h"
#include "troika/parallel/bucket_sums.h"
#include "troika/parallel/hook_thread.h"
#include "troika/parallel/servers/summation.h"

namespace troika::parallel {

// Returns the first rank of each machine, ascending, for the machines of all ranks
// (comm::Group::nodes()).
std::vector<int> first_ranks(const std::vector<int>& nodes);

// Whether ranks of one machine sum their gradients first: where there are several machines, one of
// them with several ranks, unless the exchange is asynchronous or has no such sums.
bool has_local_sums(const std::vector<int>& nodes, const layout::SummationExchange& sums);

// The first rank of each machine (its root) gets the sum of the machine's gradients, exchanges it
// with the servers, and gives the mean to the machine's other ranks. Each machine's link carries
// the bytes of one rank, so n in SummationSplit is the number of machines, and the servers in the
// processes of other ranks than roots sum nothing. Machines may have different numbers of ranks:
// the mean is that of all ranks.
//
// With fp16 or bf16, values are rounded to it inside a machine on both ways, also on machines with
// one rank, so that all ranks get the same bits. Each rank's values are multiplied by
// machines / ranks before, so that a sum of 16 bits seldom overflows where gradients do not.
//
// A root gives means to the others in the order in which they come. All ranks of a machine start
// buckets in the same order, and call finish_any() for the same buckets in the same order.
class LocalSums : public BucketSums {
 public:
  // As for SummationServers, whose options.members are replaced. The form of sums inside a machine
  // is options.sums.local_sums, not `none`. Called by all ranks; blocks.
  LocalSums(const comm::Group& group, SummationOptions options);
  // The same with a role that does not come from the environment.
  LocalSums(const comm::Group& group, SummationOptions options, const server::WorldOptions& role);
  ~LocalSums() override;

  void lay_out(const std::vector<Bucket>& buckets) override;
  // Waits until all buckets that were started are summed inside the machine.
  void expect_rate(double rate) override;
  void start(const Bucket& bucket) override;
  // Throws the errors of SummationServers::finish(), and those of the machine's group.
  void finish() override;
  size_t finish_any(const std::vector<size_t>& buckets) override;
  void drop() override;
  // That of SummationServers, of roots.
  state::StateDict state() override;
  void load_state(const state::StateDict& state) override { servers_.load_state(state); }

  // The traffic of this rank with a server: those of spare machines come first, then those of
  // machines with ranks.
  server::SummationTraffic traffic(size_t server) { return servers_.traffic(server); }

 private:
  bool has_started() const;
  bool is_root() const { return means_.rank() == 0; }
  HookThread& thread();
  void sum(const comm::Group& machine, const comm::GradientBucket& bucket);
  // Waits for the next mean of these buckets, and returns its bucket.
  size_t take_mean(const std::vector<size_t>& buckets);

  const comm::Group means_;  // of this machine's ranks, for what roots give to others
  const double factor_;      // of each rank's values
  const std::optional<at::ScalarType> half_;
  SummationServers servers_;
  std::vector<const Bucket*> started_;  // by bucket; null: its mean is there
  std::unique_ptr<HookThread> thread_;  // calls sum(); after what that uses; null: dropped
};

// Returns a LocalSums if the group has_local_sums(), otherwise a SummationServers. Called by all
// ranks; blocks. Throws their errors.
std::shared_ptr<BucketSums> make_summation(const comm::Group& group, SummationOptions options);

}  // namespace troika::parallel
