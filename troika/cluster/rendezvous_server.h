// Rank 0's end of the control connection: one thread that gathers the ranks, keeps the keys and
// tells everybody who was lost.
#pragma once

#include <atomic>
#include <string>
#include <thread>

#include "troika/cluster/relay_plan.h"
#include "troika/cluster/roster.h"
#include "troika/net/descriptor.h"
#include "troika/net/handshake.h"

namespace troika::cluster {

class RendezvousServer {
 public:
  // Serves on `listener` until destroyed.
  RendezvousServer(net::Descriptor listener, net::ServerHandshake handshake, Roster roster,
                   RelayRules rules);
  // Sends what is still to be sent, waiting for peers at most a second; those still there see rank
  // 0 as lost unless say_bye() came before.
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  void say_bye() { bye_ = true; }

 private:
  net::Waker stop_;
  std::atomic<bool> bye_ = false;
  std::thread thread_;
};

}  // namespace troika::cluster
