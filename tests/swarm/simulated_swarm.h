// Identities and endpoints of peers on a simulated network.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "troika/net/simulated_network.h"
#include "troika/swarm/identity.h"
#include "troika/swarm/record.h"

namespace troika::swarm {

inline Identity identity_of(size_t index) {
  std::array<uint8_t, Identity::kSeed> seed{};
  seed[0] = static_cast<uint8_t>(index);
  seed[1] = static_cast<uint8_t>(index >> 8);
  return Identity::from_seed(seed);
}

inline net::Duration seconds(double count) {
  return std::chrono::duration_cast<net::Duration>(std::chrono::duration<double>(count));
}

// The wall clock of simulated peers.
inline WallClock clock_of(const net::SimulatedNetwork& network, WallTime skew = {}) {
  return [&network, skew] {
    return std::chrono::duration_cast<WallTime>(network.now()) + std::chrono::hours(400'000) + skew;
  };
}

// Runs all events of the next seconds.
inline void pass(net::SimulatedNetwork& network, double count) {
  const auto until = network.now() + seconds(count);
  while (network.step(until)) {
  }
}

}  // namespace troika::swarm
