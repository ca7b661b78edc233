// A view of a swarm from outside.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "troika/base/clock.h"
#include "troika/cli/swarm_table.h"
#include "troika/net/secret.h"
#include "troika/net/tcp_endpoint.h"
#include "troika/swarm/bans.h"
#include "troika/swarm/gossip.h"

namespace troika::cli {

// Reads the records of a swarm as a neighbour of one of its peers, and publishes none. For one
// thread.
class SwarmView {
 public:
  // Connects to the first of `peers` (HOST:PORT) that answers. Throws Error: `usage` if it trains
  // in another run, and the errors of the last one if none answers.
  SwarmView(std::string run, const std::vector<std::string>& peers, Deadline deadline);
  ~SwarmView();
  SwarmView(const SwarmView&) = delete;
  SwarmView& operator=(const SwarmView&) = delete;

  WatchedSwarm look();
  // Connects to another peer, one that was named or one that is known from others, if the last one
  // is gone. Blocks for about a second if none answers.
  void reconnect();
  // Blocks until `is_over` or for that time; returns whether it was over.
  bool wait(const std::function<bool()>& is_over, net::Duration at_most) {
    return endpoint_.run_until(is_over, at_most);
  }

 private:
  void open();
  void connect(const net::Address& address, Deadline deadline);
  std::vector<net::Address> known_addresses();

  const std::string run_;
  const net::Secret secret_;
  const swarm::Identity identity_ = swarm::Identity::random();
  net::TcpEndpoint endpoint_;
  std::vector<net::Address> named_;
  size_t connections_ = 0;
  std::optional<swarm::GossipDirectory> directory_;
  std::optional<swarm::ProgressTracker> tracker_;
  std::optional<swarm::Bans> bans_;
};

}  // namespace troika::cli
