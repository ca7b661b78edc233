// The part of a vector that each peer of an averaging reduces, so that links of unequal bandwidth
// end together. The method is DeDLOC's (Diskin et al., Distributed Deep Learning in Open
// Collaborations, NeurIPS 2021): its linear programme, and the closed form of the simpler one that
// hivemind solves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace troika::swarm {

// The fractions of a vector that peers reduce; together 1.
struct Shares {
  std::vector<double> fractions;
  // The time of an averaging of one byte, in seconds, if links are the only limit.
  double seconds_per_byte = 0;
};

// Returns fractions w for peers with links of these bandwidths, in bytes per second each way, which
// all contribute. 0: the peer reduces nothing. Unknown bandwidths count as the mean of the known
// ones above 0.
//
// A peer's link carries (1 + (m - 2) w_i) bytes each way for each byte of the vector, with m peers.
// The least time t has w_i = clamp((t b_i - 1) / (m - 2), 0, 1) and a sum of at least 1; it is
// found by bisection, and w is then divided by its sum. With two peers t does not depend on w,
// which is then equal. Throws Error(swarm, usage) without peers, for negative or infinite
// bandwidths, and if all are 0.
Shares balanced_shares(std::span<const std::optional<double>> bandwidths);

// Returns the whole numbers of a vector of `count` numbers that peers with these fractions reduce:
// apportioned by the method of Hagenbach-Bischoff. Peers that would get fewer than `least` numbers
// get none, unless all would. The sum is `count`. Throws Error(swarm, usage) unless the fractions
// are at least 0 with a sum above 0, and `count` at least 0.
std::vector<size_t> part_sizes(size_t count, std::span<const double> fractions, size_t least);

// A peer as the paper's linear programme sees it.
struct FlowPeer {
  double up = 0, down = 0;  // bytes per second
  bool computes = true;     // contributes gradients, and gets averages
  bool reduces = true;      // others can connect to it
};

// The solution of the paper's linear programme.
struct Flows {
  // Averagings of a vector of one byte per second, and at most the limit by computation.
  double rate = 0;
  // Bytes per second from peer i to peer j, at [i * peers + j].
  std::vector<double> raw;       // contributions to what j reduces
  std::vector<double> averaged;  // averages that i has reduced

  // The part of all averages that each peer reduces.
  std::vector<double> fractions() const;
};

// Maximizes the rate of averagings. Peer i sends averages to others no faster than the slowest
// contributor sends raw parts to i; no link carries more than its bandwidth; peers that do not
// reduce get no raw parts. `most_rate`: averagings per second times bytes of the vector that
// computation allows (infinite: links are the only limit). Takes milliseconds for 8 peers and about
// a second for 20. Throws Error(swarm, usage) for bandwidths that are negative or not finite, and
// if no peer computes or none reduces.
Flows optimal_flows(std::span<const FlowPeer> peers,
                    double most_rate = std::numeric_limits<double>::infinity());

}  // namespace troika::swarm
