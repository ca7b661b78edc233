#include "troika/cluster/rendezvous/rendezvous.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/cluster/discovery/listen.h"
#include "troika/cluster/discovery/run_secret.h"
#include "troika/cluster/rendezvous/connect.h"
#include "troika/cluster/rendezvous/rendezvous_server.h"
#include "troika/cluster/rendezvous/server_connection.h"
#include "troika/net/descriptor.h"

namespace troika::cluster {

namespace {

// Each rank has a connection to rank 0 or a relay; back ends of `comm` may add more.
void require_descriptors(const Environment& environment, const RelayRules& rules) {
  constexpr int kOther = 32;
  const int world_size = environment.world_size;
  const int64_t needed = most_connections(rules, world_size, environment.num_nodes) + kOther;
  const int64_t limit = net::allow_descriptors(4 * int64_t{world_size} + 256);
  if (limit >= needed) return;
  throw Error("cluster", ErrorKind::usage,
              {.what = fmt::format("rank 0 cannot hold the connections of {} ranks", world_size),
               .got = fmt::format("a limit of {} open files", limit),
               .expected = fmt::format("at least {}", needed),
               .hint = "raise the hard limit (ulimit -Hn) where rank 0 starts"});
}

}  // namespace

Rendezvous::Rendezvous(std::unique_ptr<ServerConnection> connection)
    : connection_(std::move(connection)) {}
Rendezvous::~Rendezvous() = default;

std::shared_ptr<Rendezvous> Rendezvous::join(const Environment& environment, Deadline deadline) {
  return join(environment, secret_of_ranks(environment), deadline);
}

std::shared_ptr<Rendezvous> Rendezvous::join(const Environment& environment,
                                             const RunSecret& secret, Deadline deadline,
                                             const RelayRules& rules) {
  const bool alone = environment.world_size == 1;
  if (!alone && (environment.master_address.empty() || environment.master_port == 0)) {
    throw Error(
        "cluster", ErrorKind::usage,
        {.what = "the ranks have no address of rank 0",
         .got = describe(environment),
         .expected = "MASTER_ADDR and MASTER_PORT",
         .hint = "set both, the same on all ranks, to the machine of rank 0 and a free port"});
  }
  const std::string& name = environment.master_address;
  Entrance entrance{environment, secret, name, environment.master_port, rules};
  std::optional<Listening> here;
  if (environment.rank == 0) {
    require_descriptors(environment, rules);
    here = listen_for(alone ? "127.0.0.1" : name, entrance.port);
    entrance.address = here->address;
    entrance.port = here->port;
  }
  // Comes before the server, because the connections of other ranks may take all descriptors.
  auto line = make_line(entrance);
  std::unique_ptr<RendezvousServer> server;
  if (here) {
    Roster roster(environment.world_size, environment.run_id,
                  fmt::format("{}:{}", name, here->port));
    server = std::make_unique<RendezvousServer>(*std::move(here), secret, std::move(roster), rules);
  }
  Joined joined = join_run(entrance, std::move(line), deadline);
  return std::shared_ptr<Rendezvous>(new Rendezvous(std::make_unique<ServerConnection>(
      std::move(server), std::move(entrance), std::move(joined))));
}

void Rendezvous::set(const std::string& key, const std::string& value, Deadline deadline) {
  connection_->call(Message::set, key, value, deadline, fmt::format("setting key \"{}\"", key));
}

std::string Rendezvous::get(const std::string& key, Deadline deadline) {
  return connection_->call(Message::get, key, "", deadline,
                           fmt::format("waiting for key \"{}\"", key));
}

int64_t Rendezvous::add(const std::string& key, int64_t delta, Deadline deadline) {
  const auto sum = connection_->call(Message::add, key, std::to_string(delta), deadline,
                                     fmt::format("adding to key \"{}\"", key));
  return parse_int(sum).value();
}

void Rendezvous::on_peer_lost(LossListener listener) {
  connection_->listen(Message::lost, std::move(listener));
}

void Rendezvous::on_peer_left(LeaveListener listener) {
  connection_->listen(Message::left, std::move(listener));
}

void Rendezvous::on_asked(Answerer answerer) {
  connection_->on_asked(std::move(answerer));
}

Answers Rendezvous::ask_all(const std::string& question, Deadline deadline) {
  return connection_->ask_all(question, deadline);
}

void Rendezvous::leave(const std::string& farewell, Deadline deadline) {
  connection_->leave(farewell, deadline);
}

void Rendezvous::fail(const std::string& reason, Deadline deadline) {
  connection_->fail(reason, deadline);
}

int Rendezvous::port() const {
  return connection_->port();
}

std::vector<int> Rendezvous::relays() const {
  return connection_->relays();
}

}  // namespace troika::cluster
