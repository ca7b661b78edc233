// The implementations of one collective that are compared with each other.
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
#include "troika/cluster/discovery/environment.h"
#include "troika/comm/group.h"

namespace troika::cli::bench {

// The objects that ranks share during all measurements: a group for each back end of the plan, the
// peers, and the barrier at which calls start.
class Setup {
 public:
  // Called by all ranks; blocks until they have joined every group.
  Setup(const Plan& plan, const cluster::Environment& environment);

  const std::vector<comm::Group>& groups() const { return groups_; }
  // The group in which the ranks agree on what to measure.
  const comm::Group& control() const { return groups_.front(); }
  // Peer number `i` of plan.against.
  Peer& peer(size_t i) const { return *peers_[i]; }
  SpinBarrier& barrier() { return barrier_; }

 private:
  std::vector<comm::Group> groups_;
  std::vector<std::unique_ptr<Peer>> peers_;
  SpinBarrier barrier_;
};

// An implementation with its buffers. Variants with the same kind of buffers share them.
struct Variant {
  Row row;           // without its times
  at::Tensor input;  // undefined for in-place operations
  at::Tensor output;
  std::function<void()> call;  // called by all ranks; blocks until it is done on this rank
};

// Makes all variants of the plan for this size. Called by all ranks. `setup` must outlive the
// variants.
std::vector<Variant> make_variants(const Plan& plan, Setup& setup, int64_t bytes);

// Fills the input, or the in-place tensor, with values that differ between ranks and positions.
void fill(const Variant& variant, const Plan& plan, int rank);

// Throws Error(failure) unless the output is exactly the result of one call on fill()'s values.
void check(const Variant& variant, const Plan& plan, int rank, int ranks);

}  // namespace troika::cli::bench
