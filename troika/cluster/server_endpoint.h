// The endpoint of a server of this room: it listens in a role of the run.
#pragma once

#include <string>

#include "troika/cluster/listen.h"
#include "troika/cluster/run_secret.h"
#include "troika/cluster/service.h"
#include "troika/net/tcp_endpoint.h"

namespace troika::cluster {

class ServerEndpoint : public net::TcpEndpoint {
 public:
  ServerEndpoint(Listening here, const RunSecret& secret, Role role);

  // Lets the service hear of peers and frames, until stop(). It must outlive that.
  void start(Service& service);
  // Lets nobody in, and waits for peers to end, at most a second. Who has just connected may still
  // say hello and be refused.
  void stop(Service& service);
  // Who was not let in, for the error of those who waited in vain; "" for nobody.
  std::string unwelcome_text();
};

}  // namespace troika::cluster
