// Simulates a swarm: the room's own peers, on a simulated network and clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troika/swarm/simulation/scenario.h"

namespace troika::swarm {

struct SimulatedPeerReport {
  std::string kind;
  SimulatedLie lie = SimulatedLie::none;
  double seconds = 0;       // that it was there
  bool is_there = false;    // at the end
  int64_t steps = 0;        // that it made
  int64_t downloads = 0;    // of states
  int64_t computed = 0;     // samples
  int64_t contributed = 0;  // samples of averagings that it ended
  uint64_t sent = 0;        // bytes of all its messages
  uint64_t received = 0;
};

struct SimulationReport {
  double seconds = 0;
  int64_t steps = 0;
  double longest_step = 0;  // seconds between two steps of the swarm
  // Samples of the averages of each step. The least average of a step's largest group counts.
  double samples = 0;
  double computed = 0;    // samples, of peers that were there
  int64_t averages = 0;   // of a peer and a step
  int64_t whole = 0;      // of them: all numbers, from all members
  int64_t alone = 0;      // of them: of a peer that found no group
  double first_loss = 0;  // of the problem that is solved, before the first step
  double last_loss = 0;   // of the honest peers at the last step; NaN if it has diverged
  std::vector<SimulatedPeerReport> peers;
  uint64_t events = 0;  // of the network
};

// Each peer has the room's Peer (peer.h) with an endpoint of a simulated network
// (net/simulated_network.h). The peers minimise |w - w*|^2 / 2 by gradient descent with noisy
// gradients; messages count as many bytes as those of a model of Scenario::numbers. The same
// scenario gives the same report. Blocks. Throws Error(swarm, usage) for a scenario without peers,
// kinds, samples or numbers, with rates that are not finite, with negative ones, or with times that
// are no seconds or more than 1e8 (a latency: 3600).
SimulationReport simulate(const Scenario& scenario);

}  // namespace troika::swarm
