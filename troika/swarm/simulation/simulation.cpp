#include "troika/swarm/simulation/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "troika/base/error.h"
#include "troika/swarm/averaging_wire.h"
#include "troika/swarm/simulation/simulated_trainer.h"
#include "troika/swarm/state_transfer.h"

namespace troika::swarm {

namespace {

constexpr double kHour = 3600;
// Shares, rates, speeds of links and bytes of a number are below this.
constexpr double kMost = 1e18;
// Seconds of a simulation, of a batch and of a transfer of the model: far below the 292 years of
// the clock.
constexpr double kLongest = 1e8;
// Seconds of a batch. Without one, batches would not let time pass.
constexpr double kShortest = 1e-6;
constexpr double kMostLatency = 3600;

// A state of fewer numbers is hardly longer than other messages; one of more is not one message.
constexpr size_t kLeastCarried = 64, kMostCarried = 65'536;

bool is_amount(double number) {
  return number >= 0 && number < kMost;
}

void demand(bool holds, const char* what, const std::string& got, const char* expected) {
  if (holds) return;
  throw Error("swarm", ErrorKind::usage, {.what = what, .got = got, .expected = expected});
}

void check(const Scenario& scenario) {
  demand(scenario.peers > 0 && !scenario.kinds.empty(), "a simulated swarm",
         fmt::format("{} peers of {} kinds", scenario.peers, scenario.kinds.size()),
         "at least one of each");
  demand(scenario.target_batch > 0 && scenario.batch > 0, "the samples of a simulated step",
         fmt::format("{}, computed in batches of {}", scenario.target_batch, scenario.batch),
         "at least 1 of each");
  demand(scenario.carried > 0 && scenario.numbers >= scenario.carried,
         "the numbers of a simulated model",
         fmt::format("{}, of which {} are computed", scenario.numbers, scenario.carried),
         "at least 1, and no more that are computed");
  demand(scenario.carried >= kLeastCarried && scenario.carried <= kMostCarried,
         "the numbers that a simulation computes", std::to_string(scenario.carried),
         "from 64 to 65536: a state is one message");
  const auto& churn = scenario.churn;
  demand(is_amount(churn.joins) && is_amount(churn.kills) && is_amount(churn.stops) &&
             is_amount(scenario.state_per_number),
         "the rates of a simulated swarm", "a negative or infinite one", "numbers from 0");
  demand(scenario.seconds > 0 && scenario.seconds <= kLongest, "the seconds of a simulation",
         fmt::format("{}", scenario.seconds), "more than 0 and at most 1e8");
  demand(scenario.bytes_per_number >= .001 && scenario.bytes_per_number <= 1000,
         "the bytes of a number in averagings of a simulated swarm",
         fmt::format("{}", scenario.bytes_per_number), "a number in [0.001, 1000]");
  const double longest_message = static_cast<double>(scenario.numbers) *
                                 std::max(scenario.bytes_per_number, scenario.state_per_number);
  demand(scenario.liars >= 0 && scenario.liars <= 1, "the share of liars",
         fmt::format("{}", scenario.liars), "a number in [0, 1]");
  demand(scenario.liars == 0 || !scenario.lies.empty(), "the lies of liars", "none",
         "at least one");
  for (const auto& kind : scenario.kinds) {
    demand(is_amount(kind.share) && kind.up > 0 && is_amount(kind.up) && kind.down > 0 &&
               is_amount(kind.down) && kind.latency >= 0 && kind.latency <= kMostLatency,
           "a kind of simulated peers", kind.name,
           "a share from 0, a latency in [0, 3600] seconds, and links above 0 bytes per second");
    demand(longest_message / std::min(kind.up, kind.down) <= kLongest,
           "the slower link of a kind of simulated peers",
           fmt::format("{} bytes per second ({})", std::min(kind.up, kind.down), kind.name),
           "one that carries the model in 1e8 seconds");
    const double batch = static_cast<double>(scenario.batch) / kind.speed;
    demand(kind.mode == Mode::auxiliary || (batch >= kShortest && batch <= kLongest),
           "the speed of a kind of simulated peers that train",
           fmt::format("{} samples per second ({})", kind.speed, kind.name),
           "one above 0, and a batch that takes from 1e-6 to 1e8 seconds");
  }
  const double shares = [&] {
    double sum = 0;
    for (const auto& kind : scenario.kinds) sum += kind.share;
    return sum;
  }();
  demand(shares > 0, "the shares of kinds of simulated peers", "a sum of 0", "one above 0");
}

// Chooses what is the farthest below its share, the first one among equals.
class Mix {
 public:
  explicit Mix(std::vector<double> shares) : shares_(std::move(shares)), taken_(shares_.size()) {}

  size_t next() {
    size_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < shares_.size(); ++i) {
      const double filled = (taken_[i] + .5) / shares_[i];
      if (filled < least) {
        least = filled;
        best = i;
      }
    }
    ++taken_[best];
    return best;
  }

 private:
  const std::vector<double> shares_;
  std::vector<double> taken_;
};

std::vector<double> shares_of(const std::vector<PeerKind>& kinds) {
  std::vector<double> shares;
  for (const auto& kind : kinds) shares.push_back(kind.share);
  return shares;
}

net::SimulatedLinks links_of(const Scenario& scenario) {
  const double numbers = static_cast<double>(scenario.numbers);
  const uint64_t carried = scenario.carried * sizeof(float);
  const double averaged = numbers * scenario.bytes_per_number / static_cast<double>(carried);
  const auto state = static_cast<uint64_t>(numbers * scenario.state_per_number);
  return {.least_latency = std::chrono::milliseconds(1),
          .most_latency = std::chrono::milliseconds(3),
          .bytes_per_second = 125e6,
          .weigh = [=](net::Channel channel, uint64_t bytes) {
            if (channel == kAveraging && bytes > kAveragingHead) {
              const auto values = static_cast<double>(bytes - kAveragingHead);
              return kAveragingHead + static_cast<uint64_t>(std::llround(values * averaged));
            }
            const bool is_state = channel == kStateAnswers && bytes >= carried;
            return is_state ? bytes - carried + state : bytes;
          }};
}

class Simulation {
 public:
  explicit Simulation(const Scenario& scenario)
      : scenario_(scenario),
        network_(scenario.seed, links_of(scenario)),
        problem_(scenario.carried, mix(scenario.seed, 3)),
        random_(mix(scenario.seed, 4)),
        kinds_(shares_of(scenario.kinds)),
        liars_({1 - scenario.liars, scenario.liars}) {}

  SimulationReport run() {
    for (size_t i = 0; i < scenario_.peers; ++i) join();
    report_.first_loss = problem_.loss(std::vector<float>(scenario_.carried));
    const auto& churn = scenario_.churn;
    const double rate = (churn.joins + churn.kills + churn.stops) / kHour;
    double time = 0;
    while (true) {
      time += rate > 0 ? -std::log1p(-random_.uniform()) / rate : scenario_.seconds;
      pass(std::min(time, scenario_.seconds));
      if (time >= scenario_.seconds) break;
      change(random_.uniform() * rate * kHour);
    }
    return finished();
  }

 private:
  using Trainers = std::vector<std::unique_ptr<SimulatedTrainer>>;

  struct Step {
    double weight = 0;
    size_t members = 0;
  };

  void pass(double until) {
    const auto end =
        std::chrono::duration_cast<net::Duration>(std::chrono::duration<double>(until));
    while (network_.step(end)) {
    }
  }

  // `draw`: uniform below the sum of the rates.
  void change(double draw) {
    const auto& churn = scenario_.churn;
    if (draw < churn.joins) return join();
    std::vector<size_t> there;
    for (size_t i = 0; i < trainers_.size(); ++i) {
      if (trainers_[i]->is_there()) there.push_back(i);
    }
    if (there.empty()) return;
    const size_t gone = there[random_.below(there.size())];
    trainers_[gone]->stop();
    if (draw >= churn.joins + churn.kills) return;
    for (const size_t other : there) {
      if (other != gone) network_.cut(trainers_[other]->name(), trainers_[gone]->name());
    }
  }

  void join() {
    const auto& kind = scenario_.kinds[kinds_.next()];
    auto lie = SimulatedLie::none;
    if (scenario_.liars > 0 && liars_.next() == 1) {
      lie = scenario_.lies[lied_++ % scenario_.lies.size()];
    }
    trainers_.push_back(std::make_unique<SimulatedTrainer>(
        world_, kind, lie, trainers_.size(), [this](const SwarmStep& step) { count(step); }));
    const auto& last = *trainers_.back();
    for (const auto& other : trainers_) {
      const bool are_clients = last.is_client() && other->is_client();
      if (other.get() != &last && other->is_there() && !are_clients) {
        network_.connect(other->name(), last.name());
      }
    }
  }

  void count(const SwarmStep& step) {
    ++report_.averages;
    const auto& averaging = step.averaging;
    report_.whole += averaging.is_complete() && averaging.excluded.empty() ? 1 : 0;
    report_.alone += step.members.size() == 1 ? 1 : 0;
    if (step.epoch >= report_.steps) {
      report_.steps = step.epoch + 1;
      const double now = std::chrono::duration<double>(network_.now()).count();
      report_.longest_step = std::max(report_.longest_step, now - std::exchange(last_step_, now));
    }
    auto& counted = steps_[step.epoch];
    if (step.members.size() < counted.members) return;
    const bool is_same = step.members.size() == counted.members;
    counted.weight = is_same ? std::min(counted.weight, averaging.weight) : averaging.weight;
    counted.members = step.members.size();
  }

  SimulationReport finished() {
    report_.seconds = scenario_.seconds;
    report_.events = network_.events();
    for (const auto& [epoch, step] : steps_) report_.samples += step.weight;
    int64_t last = 0;
    for (const auto& trainer : trainers_) {
      if (trainer->is_honest() && trainer->is_there()) last = std::max(last, trainer->epoch());
    }
    double loss = 0;
    int counted = 0;
    for (const auto& trainer : trainers_) {
      auto one = trainer->report();
      one.is_there = trainer->is_there();
      report_.computed += static_cast<double>(one.computed);
      report_.peers.push_back(std::move(one));
      if (!trainer->is_honest() || !trainer->is_there() || trainer->epoch() != last) continue;
      loss += trainer->loss();
      ++counted;
    }
    report_.last_loss = loss / counted;
    return std::move(report_);
  }

  const Scenario& scenario_;
  net::SimulatedNetwork network_;
  const SimulatedProblem problem_;
  const SimulatedWorld world_{.scenario = scenario_, .network = network_, .problem = problem_};
  Random random_;
  Mix kinds_;
  Mix liars_;
  size_t lied_ = 0;
  double last_step_ = 0;  // seconds
  std::map<int64_t, Step> steps_;
  SimulationReport report_;
  Trainers trainers_;  // end first
};

}  // namespace

SimulationReport simulate(const Scenario& scenario) {
  check(scenario);
  return Simulation(scenario).run();
}

}  // namespace troika::swarm
