// Rank 0's side of the control connection.
#pragma once

#include "troika/cluster/rendezvous/rendezvous_service.h"
#include "troika/cluster/rendezvous/server_endpoint.h"

namespace troika::cluster {

class RendezvousServer {
 public:
  // Serves until destroyed.
  RendezvousServer(Listening here, const RunSecret& secret, Roster roster, RelayRules rules);
  // Sends pending messages, for at most a second. Peers that are still connected then see rank 0 as
  // lost, unless say_bye() was called.
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  void say_bye() { bye_ = true; }

 private:
  ServerEndpoint endpoint_;
  RendezvousService service_;
  bool bye_ = false;
};

}  // namespace troika::cluster
