// Connects a peer of a swarm to the others, again and again.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "troika/base/clock.h"
#include "troika/net/tcp_endpoint.h"
#include "troika/swarm/contact.h"

namespace troika::parallel {

// HOST:PORT, with an IPv6 address in brackets.
std::string show(const net::Address& address);

// Asks who listens at an address. Blocks. Throws Error(swarm): `failure` or `timeout` if no peer or
// authority of this secret answers there, with the reason.
swarm::DoorSign ask_door(const net::Secret& secret, const net::Address& address, Deadline deadline);

using SwarmAddresses = std::map<std::string, std::vector<net::Address>>;  // by the peer's name

// A dialer knows this of the peers.
struct SwarmAcquaintances {
  std::vector<net::Address> known;       // addresses of peers without their names
  SwarmAddresses named = {};             // endpoints that are no peers: authorities
  std::function<SwarmAddresses()> told;  // what peers have told
  std::function<bool(const std::string&)> is_connected;
};

// Has a thread of its own, which tries all peers that are not connected about twice a second.
class SwarmDialer {
 public:
  // `endpoint` must outlive it. The functions of `acquaintances` are called by the thread.
  SwarmDialer(net::TcpEndpoint& endpoint, const net::Secret& secret, std::string run,
              SwarmAcquaintances acquaintances);

  // The names of the peers at the addresses without names, as far as they have answered; this
  // process may be one of them.
  std::set<std::string> names() const;
  // Why the last attempt at each other address failed.
  std::map<std::string, std::string> failures() const;
  // Whether the last attempt at all addresses of this peer failed. False for a client, which has
  // none.
  bool has_failed_at(const std::string& peer) const;
  // A peer of another run has answered: its address and run; empty otherwise.
  std::string other_run() const;

 private:
  void run(const std::stop_token& stop);
  void learn_names(const std::stop_token& stop);
  void try_peer(const std::string& name, const std::vector<net::Address>& addresses);

  net::TcpEndpoint& endpoint_;
  const net::Secret secret_;
  const std::string run_;
  const SwarmAcquaintances acquaintances_;
  mutable std::mutex mutex_;
  std::condition_variable_any rest_;
  std::map<std::string, std::string> names_;     // of peers, by known address
  std::map<std::string, std::string> failures_;  // by known address
  std::set<std::string> unreachable_;            // peers
  std::string other_run_;
  std::jthread thread_;  // ends first
};

}  // namespace troika::parallel
