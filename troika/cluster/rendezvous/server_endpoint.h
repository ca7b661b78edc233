// The endpoint of a server of troika/cluster. It listens in one role of the run.
#pragma once

#include <string>

#include "troika/cluster/discovery/listen.h"
#include "troika/cluster/discovery/run_secret.h"
#include "troika/cluster/rendezvous/service.h"
#include "troika/net/tcp_endpoint.h"

namespace troika::cluster {

class ServerEndpoint : public net::TcpEndpoint {
 public:
  ServerEndpoint(Listening here, const RunSecret& secret, Role role);

  // Passes peers and frames to `service` until stop(). `service` must outlive that call.
  void start(Service& service);
  // Stops accepting and waits up to a second for peers to end. A peer that has just connected can
  // still send its hello and be refused.
  void stop(Service& service);
  // Text on rejected connections for timeout errors; "" for none.
  std::string unwelcome_text();
};

}  // namespace troika::cluster
