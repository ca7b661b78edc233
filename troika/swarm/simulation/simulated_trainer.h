// A peer of a simulated swarm, with what trains on its machine. Internal to the room.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troika/base/random.h"
#include "troika/net/simulated_network.h"
#include "troika/swarm/identity.h"
#include "troika/swarm/peer.h"
#include "troika/swarm/simulation/simulated_problem.h"
#include "troika/swarm/simulation/simulation.h"

namespace troika::swarm {

// The parts of a simulation that its peers share.
struct SimulatedWorld {
  const Scenario& scenario;
  net::SimulatedNetwork& network;
  const SimulatedProblem& problem;
  GossipReader reader = sharing_reader();
};

// Computes batches, reports them, contributes at the end of the batch in which the step is due, and
// then waits for the step.
class SimulatedTrainer {
 public:
  // Called for each step that it makes.
  using Stepped = std::function<void(const SwarmStep& step)>;

  // The world must outlive it.
  SimulatedTrainer(const SimulatedWorld& world, const PeerKind& kind, SimulatedLie lie,
                   size_t index, Stepped stepped);
  ~SimulatedTrainer();
  SimulatedTrainer(const SimulatedTrainer&) = delete;
  SimulatedTrainer& operator=(const SimulatedTrainer&) = delete;

  const std::string& name() const { return identity_.name(); }
  bool is_client() const { return kind_.mode == Mode::client; }
  // Whether it trains and does not lie.
  bool is_honest() const { return kind_.mode != Mode::auxiliary && lie_ == SimulatedLie::none; }
  bool is_there() const { return peer_ != nullptr; }
  int64_t epoch() const { return peer_->epoch(); }
  double loss() const { return world_.problem.loss(weights_); }
  // Ends it as a process that is stopped.
  void stop();
  SimulatedPeerReport report() const;

 private:
  PeerOptions<float> options(size_t index) const;
  PeerCallbacks<float> callbacks();
  void work();
  void end_batch();
  void contribute();
  void go_on();

  const PeerKind kind_;
  const SimulatedLie lie_;
  const Identity identity_;
  const SimulatedWorld& world_;
  const Stepped stepped_;
  net::Endpoint& endpoint_;
  Random random_;
  std::vector<float> weights_;
  std::vector<float> first_;  // gradient of a liar
  struct Course {
    net::Duration begun{};
    int64_t samples = 0;                                // since the last step
    std::optional<int64_t> due = {}, contributed = {};  // epochs
    net::Ticket next = 0;                               // of work() or end_batch()
    bool computes = false;
  } course_;
  SimulatedPeerReport report_;
  std::unique_ptr<Peer<float>> peer_;  // ends first
};

}  // namespace troika::swarm
