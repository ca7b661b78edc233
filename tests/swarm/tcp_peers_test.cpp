// Peers over sockets, with the snippets of docs/swarm.md.
#include <gmock/gmock.h>

#include <cstring>
#include <memory>
#include <vector>

#include "troika/net/tcp_endpoint.h"
#include "troika/swarm/peer.h"

namespace troika {
namespace {

// Trains one number; each peer has another gradient.
struct TcpTrainer {
  TcpTrainer(const net::Secret& secret, float value)
      : identity(swarm::Identity::random()),
        endpoint({.name = identity.name(),
                  .secret = secret,
                  .listen = {{"127.0.0.1", 0}},
                  .polls = false}),
        own(value) {
    swarm::PeerOptions<float> options;
#include "swarm-1.inc"
    net::act_on(endpoint, [this] { train(); });
  }
  ~TcpTrainer() {
    net::act_on(endpoint, [this] { peer.reset(); });
  }

  void join(const std::string& other, const std::vector<net::Address>& addresses) {
    const auto deadline = Deadline::after(std::chrono::seconds(20));
#include "swarm-2.inc"
  }

  void train() {
    if (!peer) return;
    samples += 4;
    peer->report(4);
    endpoint.after(std::chrono::milliseconds(20), [this] { train(); });
  }
  std::shared_ptr<std::vector<float>> mean_gradient() const {
    return std::make_shared<std::vector<float>>(1, own);
  }
  void update(const swarm::SwarmStep& step, const std::vector<float>& gradient) {
    weight -= gradient.front();
    samples = 0;
    whole += step.members.size() == 3 && step.averaging.is_complete();
  }
  std::string state() const {
    return {reinterpret_cast<const char*>(&weight), sizeof(weight)};
  }
  void load(const std::string& state) {
    std::memcpy(&weight, state.data(), sizeof(weight));
    samples = 0;
  }

  const swarm::Identity identity;
  net::TcpEndpoint endpoint;
  const float own;
  float weight = 0;
  double samples = 0;
  int whole = 0;  // steps of all three peers
  std::unique_ptr<swarm::Peer<float>> peer;
};

TEST(TcpPeers, TrainTogether) {
  const auto secret = net::Secret::random();
  std::vector<std::unique_ptr<TcpTrainer>> trainers;
  for (int i = 0; i < 3; ++i) {
    auto trainer = std::make_unique<TcpTrainer>(secret, static_cast<float>(i));
    for (auto& other : trainers) {
      trainer->join(other->identity.name(), other->endpoint.addresses());
    }
    trainers.push_back(std::move(trainer));
  }
  for (auto& trainer : trainers) {
    EXPECT_TRUE(trainer->endpoint.run_until(
        [&] { return trainer->whole >= 3 && trainer->weight < -2; }, std::chrono::seconds(60)));
  }
}

}  // namespace
}  // namespace troika
