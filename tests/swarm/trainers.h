// Peers of a simulated network that train.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/swarm/simulated_swarm.h"
#include "troika/base/random.h"
#include "troika/swarm/metered_endpoint.h"
#include "troika/swarm/peer.h"

namespace troika::swarm {

// A contribution to an epoch: the mean gradient of a peer. It is 1 at the places of the peer, and
// 0 elsewhere, so that an average tells who is in it.
inline constexpr size_t kPlaces = 128;  // number k is a place of peer k mod kPlaces
inline constexpr size_t kNumbers = 16 * kPlaces;

struct Trainer {
  std::unique_ptr<Identity> identity;
  net::Endpoint* endpoint = nullptr;
  double speed = 1;  // samples per second; 0: none
  std::vector<double> weights = std::vector<double>(kNumbers);
  int64_t samples = 0;  // of the epoch
  int steps = 0, loads = 0;
  bool is_gone = false;
  bool is_paused = false;
  std::unique_ptr<MeteredEndpoint> metered;
  std::unique_ptr<Peer<double>> peer;  // ends first

  std::shared_ptr<const std::string> state() const {
    return std::make_shared<const std::string>(reinterpret_cast<const char*>(weights.data()),
                                               sizeof(double) * kNumbers);
  }
};

class Trainers {
 public:
  explicit Trainers(uint64_t seed, int64_t target_batch = 64, net::SimulatedLinks links = {})
      : network(seed, links), random(seed), target_batch_(target_batch) {}
  ~Trainers() { all.clear(); }
  Trainers(const Trainers&) = delete;
  Trainers& operator=(const Trainers&) = delete;

  Trainer& add(double speed, PeerOptions<double> options = {}, const BandwidthCap& cap = {}) {
    const size_t index = all.size();
    all.push_back(std::make_unique<Trainer>());
    auto& trainer = *all.back();
    trainer.identity = std::make_unique<Identity>(identity_of(index));
    trainer.endpoint = &network.add(trainer.identity->name());
    trainer.speed = speed;
    options.run = "run";
    if (options.target_batch == 1) options.target_batch = target_batch_;
    options.seed = index;
    options.least_part = kPlaces;
    trainer.metered = std::make_unique<MeteredEndpoint>(*trainer.endpoint, cap);
    trainer.peer = std::make_unique<Peer<double>>(
        *trainer.metered, *trainer.identity, options,
        PeerCallbacks<double>{
            .due = [this, index](int64_t epoch) { contribute(index, epoch); },
            .averaged = [this, index](const SwarmStep& step,
                                      const auto& values) { apply(index, step, *values); },
            .state = [this, index] { return all[index]->state(); },
            .load =
                [this, index](int64_t, const std::string& state) {
                  auto& one = *all[index];
                  std::memcpy(one.weights.data(), state.data(), state.size());
                  one.samples = 0;
                  ++one.loads;
                }},
        clock_of(network));
    for (size_t other = 0; other < index; ++other) {
      const bool are_clients = options.mode == Mode::client && clients.contains(other);
      if (!all[other]->is_gone && !are_clients) connect(other, index);
    }
    if (options.mode == Mode::client) clients.insert(index);
    if (speed > 0) train(index);
    return trainer;
  }
  void connect(size_t a, size_t b) {
    network.connect(all[a]->identity->name(), all[b]->identity->name());
  }
  void cut(size_t a, size_t b) { network.cut(all[a]->identity->name(), all[b]->identity->name()); }
  // Without notice, as a process that is stopped.
  void stop(size_t index) {
    all[index]->is_gone = true;
    network.stop(all[index]->identity->name());
  }
  void kill(size_t index) {
    stop(index);
    for (size_t other = 0; other < all.size(); ++other) {
      if (other != index) cut(other, index);
    }
  }
  void pause(size_t index, bool is_paused) {
    all[index]->is_paused = is_paused;
    all[index]->peer->set_paused(is_paused);
  }
  std::vector<size_t> live() const {
    std::vector<size_t> indices;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!all[i]->is_gone) indices.push_back(i);
    }
    return indices;
  }

  net::SimulatedNetwork network;
  Random random;
  std::vector<std::unique_ptr<Trainer>> all;
  std::set<size_t> clients;
  // Weights of contributions, by (epoch, peer). A peer may come to an epoch again.
  std::map<std::pair<int64_t, size_t>, std::set<double>> contributed;
  std::function<void(size_t, const SwarmStep&, const std::vector<double>&)> checked;
  // Changes what a peer contributes.
  std::function<void(size_t, std::vector<double>&)> lies;

 private:
  void train(size_t index) {
    auto& trainer = *all[index];
    const auto batch = static_cast<int64_t>(1 + random.below(4));
    const double time = static_cast<double>(batch) / trainer.speed * random.uniform(.8, 1.2);
    trainer.endpoint->after(seconds(time), [this, index, batch] {
      if (!all[index]->is_paused) {
        all[index]->samples += batch;
        all[index]->peer->report(batch);
      }
      train(index);
    });
  }
  void contribute(size_t index, int64_t epoch) {
    auto values = std::make_shared<std::vector<double>>(kNumbers);
    for (size_t k = index % kPlaces; k < kNumbers; k += kPlaces) (*values)[k] = 1;
    if (lies) lies(index, *values);
    const auto weight = static_cast<double>(all[index]->samples);
    contributed[{epoch, index}].insert(weight);
    all[index]->peer->contribute(epoch, std::move(values), weight);
  }
  void apply(size_t index, const SwarmStep& step, const std::vector<double>& values) {
    auto& trainer = *all[index];
    if (checked) checked(index, step, values);
    for (size_t k = 0; k < kNumbers; ++k) trainer.weights[k] -= .1 * values[k];
    trainer.samples = 0;
    ++trainer.steps;
  }

  const int64_t target_batch_;
};

}  // namespace troika::swarm
