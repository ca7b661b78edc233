#include "troika/cluster/rendezvous/rendezvous_server.h"

#include <utility>

namespace troika::cluster {

RendezvousServer::RendezvousServer(Listening here, const RunSecret& secret, Roster roster,
                                   RelayRules rules)
    : endpoint_(std::move(here), secret, Role::ranks),
      service_(endpoint_, std::move(roster), rules, [this] { return endpoint_.unwelcome_text(); }) {
  endpoint_.start(service_);
}

RendezvousServer::~RendezvousServer() {
  net::act_on(endpoint_, [this] { service_.finish(bye_); });
  endpoint_.stop(service_);
}

}  // namespace troika::cluster
