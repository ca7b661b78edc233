// A Lighthouse on a TCP endpoint.
#pragma once

#include <string>

#include "troika/net/tcp_endpoint.h"
#include "troika/quorum/lighthouse.h"

namespace troika::quorum {

// Serves from construction to destruction, on the endpoint's thread. Members connect to the
// endpoint, whose name is kLighthouse.
class LighthouseServer {
 public:
  // `listen`: numeric addresses of this machine; port 0 is any free one. Throws Error(net, usage)
  // for a port in use.
  LighthouseServer(const net::Secret& secret, const net::Address& listen);
  // Members lose the lighthouse. Blocks for a second at most.
  ~LighthouseServer();
  LighthouseServer(const LighthouseServer&) = delete;
  LighthouseServer& operator=(const LighthouseServer&) = delete;

  int port() const { return endpoint_.addresses().front().port; }
  // Any thread may call it.
  Totals totals();
  // The process groups of members that lost their place since the last call, and may still run. Any
  // thread may call it.
  std::vector<int64_t> take_refused();

 private:
  void take(const std::string& peer, const std::string& text);
  void tick();
  void send_news();

  Lighthouse lighthouse_;
  net::Duration ticked_{};
  net::TcpEndpoint endpoint_;  // ends first, because its callbacks use the others
};

}  // namespace troika::quorum
