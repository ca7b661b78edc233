// The ways of doing one collective that are measured against each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "troika/cli/bench/peers/peer.h"
#include "troika/cli/bench/plan.h"
#include "troika/cli/bench/report.h"
#include "troika/cli/bench/shared_memory.h"
#include "troika/cluster/environment.h"
#include "troika/comm/group.h"

namespace troika::cli::bench {

// All that ranks share from the first measurement to the last: a group for each back end of the
// plan, the peers, and the barrier from which calls start.
class Setup {
 public:
  // Called by all ranks; blocks until they have met in every group.
  Setup(const Plan& plan, const cluster::Environment& environment);

  const std::vector<comm::Group>& groups() const { return groups_; }
  // Where the ranks agree on what to measure.
  const comm::Group& control() const { return groups_.front(); }
  // The peers of plan.against, in its order.
  Peer& peer(size_t i) const { return *peers_[i]; }
  SpinBarrier& barrier() { return barrier_; }

 private:
  std::vector<comm::Group> groups_;
  std::vector<std::unique_ptr<Peer>> peers_;
  SpinBarrier barrier_;
};

// Variants of the same buffers share them.
struct Variant {
  Row row;           // without its times
  at::Tensor input;  // undefined where the operation works in place
  at::Tensor output;
  std::function<void()> call;  // by all ranks; blocks until it is done on this one
};

// All variants of the plan at this size, called by all ranks. They must not outlive the setup.
std::vector<Variant> make_variants(const Plan& plan, Setup& setup, int64_t bytes);

// Gives the input, or what is changed in place, values that tell ranks and places apart.
void fill(const Variant& variant, const Plan& plan, int rank);

// Throws Error(failure) when the output is not exactly what one call makes of what fill() gave.
void check(const Variant& variant, const Plan& plan, int rank, int ranks);

}  // namespace troika::cli::bench
