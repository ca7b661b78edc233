#include "troika/cluster/rendezvous/server_endpoint.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace troika::cluster {

namespace {

constexpr std::chrono::seconds kClosingTime{1};
// In addition to the newcomers that the service counts.
constexpr size_t kMostSayingHello = 64;
// The maximum number of ranks or launches; the limit on open files is reached before.
constexpr size_t kMostPeers = size_t{1} << 20;

net::TcpOptions options_of(const RunSecret& secret, Role role, int port) {
  return {.name = listener_name(role, port),
          .secret = role_key(secret, role),
          .listen = {},
          .most_peers = kMostPeers,
          .limits = {.newcomers = kMostSayingHello}};
}

std::vector<net::Descriptor> listeners_of(Listening here) {
  std::vector<net::Descriptor> listeners;
  listeners.push_back(std::move(here.socket));
  return listeners;
}

}  // namespace

ServerEndpoint::ServerEndpoint(Listening here, const RunSecret& secret, Role role)
    : TcpEndpoint(options_of(secret, role, here.port), listeners_of(std::move(here))) {}

void ServerEndpoint::start(Service& service) {
  net::act_on(*this, [&] {
    listen_to_peers([&service](const net::PeerChange& change) { service.note(change); });
    accept_while([&service] { return service.has_room(); });
    service.start();
  });
}

void ServerEndpoint::stop(Service& service) {
  net::act_on(*this, [&] {
    stop_listening();
    accept_while({});
    service.close_all();
  });
  run_until([&] { return service.is_alone(); }, kClosingTime);
  net::act_on(*this, [&] {
    service.stop();
    listen_to_peers({});
  });
}

std::string ServerEndpoint::unwelcome_text() {
  const net::Unwelcome unwelcome = this->unwelcome();
  std::string text = show_unproven(unwelcome.unproven);
  if (!unwelcome.accept_problem.empty()) {
    text += fmt::format("; some were not accepted: {} (raise ulimit -n)", unwelcome.accept_problem);
  }
  return text;
}

}  // namespace troika::cluster
