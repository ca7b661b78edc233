// Rank 0's end of the control connection.
#pragma once

#include "troika/cluster/rendezvous_service.h"
#include "troika/cluster/server_endpoint.h"

namespace troika::cluster {

class RendezvousServer {
 public:
  // Serves until destroyed.
  RendezvousServer(Listening here, const RunSecret& secret, Roster roster, RelayRules rules);
  // Sends what is still to be sent, waiting for peers at most a second; those still there see rank
  // 0 as lost unless say_bye() came before.
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
