// A rank that forwards frames between other ranks of its machine and rank 0's server, so that the
// server has a single connection for all of them. The ranks talk to a relay as to the server.
#pragma once

#include <optional>
#include <string>

#include "troika/cluster/rendezvous/service.h"

namespace troika::cluster {

// Shares its endpoint, which is connected to `server`, with the rank's own communication.
class Relay : public Service {
 public:
  Relay(net::Endpoint& endpoint, std::string server, int world_size)
      : Service(endpoint), server_(std::move(server)), world_size_(world_size) {}

  // Forwards a frame from the server to the ranks that it concerns. Returns true if it was only for
  // them, not for this rank.
  bool pass_on(const Frame& frame);
  void lose_server(const std::string& reason);

 private:
  void handle(Peer& from, const Frame& frame) override;
  void part_from(Peer& gone) override;

  // Calls `act` for each connected rank.
  template <typename Act>
  void each_rank(const Act& act);
  void tell_server(const Frame& frame);
  void end_all(const Frame& last_word);

  const std::string server_;
  const int world_size_;
  std::optional<Frame> last_word_;  // for all ranks, including ranks that connect later
};

}  // namespace troika::cluster
