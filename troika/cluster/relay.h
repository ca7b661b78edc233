// A rank that passes on what other ranks of its machine and rank 0's server say to each other, so
// that the server has one connection for all of them. Those ranks talk to it as they would to the
// server.
#pragma once

#include <optional>
#include <string>

#include "troika/cluster/service.h"

namespace troika::cluster {

// Shares its endpoint, which is connected to `server`, with the rank itself.
class Relay : public Service {
 public:
  Relay(net::Endpoint& endpoint, std::string server, int world_size)
      : Service(endpoint), server_(std::move(server)), world_size_(world_size) {}

  // A frame from the server, with what the ranks are to hear of it; whether it was for them alone.
  bool pass_on(const Frame& frame);
  void lose_server(const std::string& reason);

 private:
  void handle(Peer& from, const Frame& frame) override;
  void part_from(Peer& gone) override;

  // Calls `act` for the ranks that are here.
  template <typename Act>
  void each_rank(const Act& act);
  void tell_server(const Frame& frame);
  void end_all(const Frame& last_word);

  const std::string server_;
  const int world_size_;
  std::optional<Frame> last_word_;  // for all ranks, also those yet to come
};

}  // namespace troika::cluster
