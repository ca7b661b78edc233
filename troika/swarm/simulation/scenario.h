// A description of what happens to a simulated swarm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "troika/swarm/averaging.h"

namespace troika::swarm {

// Peers of one sort of machine and link.
struct PeerKind {
  std::string name = "node";
  double share = 1;      // of the peers, in any unit
  double up = 12.5e6;    // bytes per second
  double down = 12.5e6;  // bytes per second
  double latency = .01;  // seconds each way, from the peer into the network
  double speed = 10;     // samples per second
  Mode mode = Mode::node;
};

// The kinds of lies about gradients.
enum class SimulatedLie : uint8_t {
  none,
  sign_flip,  // minus its gradient
  scaled,     // 100 times its gradient
  constant,   // 10 for each number
  delayed,    // the gradient of its first contribution
  not_a_number,
  colluding,  // all the same: 1.5 standard deviations below the true gradient, for each number
};
// "sign_flip" and so on. Throws Error(swarm, usage) for other names.
SimulatedLie lie_from(std::string_view name);
std::string_view name_of(SimulatedLie lie);

// Peers that come and go: means per hour, of events of a Poisson process.
struct Churn {
  double joins = 0;
  double kills = 0;  // the connections end, and others are told
  double stops = 0;  // the peer is silent from then on
};

struct Scenario {
  size_t peers = 8;  // at the beginning
  double seconds = 3600;
  uint64_t seed = 1;
  // In the order of their shares, so that any number of peers has the mix. At least one.
  std::vector<PeerKind> kinds = {PeerKind{}};
  Churn churn = {};
  double liars = 0;                     // the share of peers that lie
  std::vector<SimulatedLie> lies = {};  // that they take in turn
  Aggregation aggregation = Aggregation::mean;
  size_t group_size = 0;  // PeerOptions

  int64_t target_batch = 1024;   // samples of a step
  int64_t batch = 1;             // samples that a peer computes at a time
  uint64_t numbers = 1'000'000;  // of the model
  double bytes_per_number = 4;   // in averagings
  double state_per_number = 12;  // bytes of a state that is downloaded
  // Numbers that are computed, from 64 to 65536. Each stands for an equal part of the model's.
  size_t carried = 1024;
};

}  // namespace troika::swarm
