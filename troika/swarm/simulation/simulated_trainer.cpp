#include "troika/swarm/simulation/simulated_trainer.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace troika::swarm {

namespace {

// How often a trainer that waits looks whether its peer downloads a state.
constexpr net::Duration kLook = std::chrono::milliseconds(500);

net::Duration duration_of(double seconds) {
  return std::chrono::duration_cast<net::Duration>(std::chrono::duration<double>(seconds));
}

Identity identity_of(uint64_t seed, size_t index) {
  std::array<uint8_t, Identity::kSeed> bytes{};
  Random random(mix(seed, index));
  for (auto& byte : bytes) byte = static_cast<uint8_t>(random.below(256));
  return Identity::from_seed(bytes);
}

}  // namespace

SimulatedTrainer::SimulatedTrainer(const SimulatedWorld& world, const PeerKind& kind,
                                   SimulatedLie lie, size_t index, Stepped stepped)
    : kind_(kind),
      lie_(lie),
      identity_(identity_of(world.scenario.seed, index)),
      world_(world),
      stepped_(std::move(stepped)),
      endpoint_(world.network.add(
          identity_.name(),
          {.up = kind.up, .down = kind.down, .latency = duration_of(kind.latency)})),
      random_(mix(world.scenario.seed, index, 1)),
      weights_(world.problem.numbers()),
      course_{.begun = world.network.now()},
      report_{.kind = kind.name, .lie = lie} {
  peer_ = std::make_unique<Peer<float>>(endpoint_, identity_, options(index), callbacks(), [this] {
    return std::chrono::duration_cast<WallTime>(world_.network.now()) + std::chrono::hours(400'000);
  });
  if (kind_.mode != Mode::auxiliary) work();
}

SimulatedTrainer::~SimulatedTrainer() = default;

PeerOptions<float> SimulatedTrainer::options(size_t index) const {
  const auto& scenario = world_.scenario;
  PeerOptions<float> options;
  const double stands_for =
      static_cast<double>(scenario.numbers) / static_cast<double>(scenario.carried);
  options.run = "simulated";
  options.target_batch = scenario.target_batch;
  options.aggregation = scenario.aggregation;
  options.group_size = scenario.group_size;
  options.mode = kind_.mode;
  // A number of 4 bytes takes as long as what it stands for.
  options.bandwidth =
      std::min(kind_.up, kind_.down) / (stands_for * scenario.bytes_per_number / sizeof(float));
  options.least_part = std::max<size_t>(
      1, static_cast<size_t>(static_cast<double>(options.least_part) / stands_for));
  options.seed = mix(scenario.seed, index, 2);
  options.reader = world_.reader;
  return options;
}

PeerCallbacks<float> SimulatedTrainer::callbacks() {
  return {.due =
              [this](int64_t epoch) {
                // The swarm asks again when there was no step.
                course_.contributed.reset();
                course_.due = epoch;
                if (!course_.computes) go_on();
              },
          .averaged =
              [this](const SwarmStep& step, const auto& values) {
                SimulatedProblem::descend(weights_, *values);
                ++report_.steps;
                report_.contributed += std::exchange(course_.samples, 0);
                stepped_(step);
                course_.due.reset();
                course_.contributed.reset();
                if (!course_.computes) go_on();
              },
          .state =
              [this] {
                return std::make_shared<const std::string>(
                    reinterpret_cast<const char*>(weights_.data()),
                    weights_.size() * sizeof(float));
              },
          .load =
              [this](int64_t, const std::string& state) {
                std::memcpy(weights_.data(), state.data(), state.size());
                ++report_.downloads;
                course_.samples = 0;
                course_.due.reset();
                course_.contributed.reset();
                if (!course_.computes) go_on();
              }};
}

// Not from within a callback of the peer.
void SimulatedTrainer::go_on() {
  endpoint_.cancel(course_.next, net::Outcome::cancelled);
  course_.next = endpoint_.after(net::Duration(0), [this] { work(); });
}

void SimulatedTrainer::work() {
  course_.computes = false;
  if (peer_->is_downloading()) course_.contributed.reset();
  if (course_.contributed || peer_->is_downloading()) {
    course_.next = endpoint_.after(kLook, [this] { work(); });
    return;
  }
  course_.computes = true;
  const double seconds =
      static_cast<double>(world_.scenario.batch) / kind_.speed * random_.uniform(.9, 1.1);
  course_.next = endpoint_.after(duration_of(seconds), [this] { end_batch(); });
}

void SimulatedTrainer::end_batch() {
  course_.computes = false;
  const auto batch = world_.scenario.batch;
  report_.computed += batch;
  course_.samples += batch;
  peer_->report(batch);
  if (course_.due && !course_.contributed) contribute();
  endpoint_.cancel(course_.next, net::Outcome::cancelled);
  work();
}

void SimulatedTrainer::contribute() {
  const auto epoch = *course_.due;
  course_.contributed = epoch;
  peer_->contribute(epoch,
                    std::make_shared<std::vector<float>>(
                        world_.problem.gradient(weights_, course_.samples, lie_, first_, random_)),
                    static_cast<double>(course_.samples));
}

void SimulatedTrainer::stop() {
  report_ = report();
  world_.network.stop(name());
  peer_.reset();
}

SimulatedPeerReport SimulatedTrainer::report() const {
  if (!peer_) return report_;
  auto report = report_;
  const auto traffic = world_.network.traffic(name());
  report.sent = traffic.sent;
  report.received = traffic.received;
  report.seconds = std::chrono::duration<double>(world_.network.now() - course_.begun).count();
  return report;
}

}  // namespace troika::swarm
