#include "troika/plan/search/partial_cost.h"

#include <algorithm>

namespace troika::plan {

namespace {

// Sums of the same times in different orders may differ by rounding.
bool is_at_most(double less, double more) {
  constexpr double kSameSum = 1e-12;
  return less <= more * (1 + kSameSum);
}

double largest(const std::array<double, 3>& values) {
  return std::ranges::max(values);
}

}  // namespace

void PartialCost::add(const WireCost& wire, const StageCost& stage) {
  latency_ += wire.latency + stage.latency;
  fill_ += wire.fill;
  whole_ = std::max(whole_, fill_ + stage.whole);
  fill_ += stage.fill;
  exposed_ = std::max(exposed_, stage.exposed);
  steady_ = std::max(steady_, stage.steady);
  backward_ = std::max(backward_, stage.backward);
  rounds_ = wire.rounds;
  for (size_t level = 0; level < ports_.size(); ++level) {
    const double before = wire.alternates ? ports_[level] : 0;
    ports_[level] = wire.port_rounds * wire.ports[level];
    steady_ = std::max(steady_, before + ports_[level]);
    if (!wire.alternates) backward_ = std::max(backward_, ports_[level]);
  }
  if (stage.in_flight == 0) return;
  add_trips(wire, stage);
  for (size_t level = 0; level < gaps_.size(); ++level) {
    gaps_[level] = std::max(0.0, wire.flows[level] - stage.between);
  }
}

void PartialCost::add_trips(const WireCost& wire, const StageCost& stage) {
  double wait = 0;
  for (size_t level = 0; level < gaps_.size(); ++level) {
    wait = std::max(wait, std::min(wire.flows[level], gaps_[level]));
  }
  if (own_.in_flight > 0) trips_.push_back(own_);
  own_ = {stage.around + stage.turn, stage.in_flight};
  for (auto& trip : trips_) {
    trip.seconds += 2 * (wire.seconds + wait) + stage.around;
    const int before_return = trip.in_flight - stage.in_flight + stage.replicas;
    steady_ = std::max(steady_, stage.rounds * trip.seconds / before_return);
  }
  drop_short_trips();
}

// All trips go on in the same way. By the mediant inequality, a trip will never take longer for
// each micro-batch than both a later trip and the round of today, if this holds for their
// difference.
void PartialCost::drop_short_trips() {
  const double round = seconds_of_round();
  std::vector<Trip> kept;
  auto last = own_;
  for (auto trip = trips_.rbegin(); trip != trips_.rend(); ++trip) {
    if (trip->seconds - last.seconds <= round * (trip->in_flight - last.in_flight)) continue;
    kept.push_back(*trip);
    last = *trip;
  }
  std::ranges::reverse(kept);
  trips_ = std::move(kept);
}

void PartialCost::expect(double steady, double backward, double whole) {
  steady_ = std::max(steady_, steady);
  backward_ = std::max(backward_, backward);
  whole_ = std::max(whole_, fill_ + whole);
}

double PartialCost::seconds(double later_latency) const {
  return std::max(latency_ + later_latency + steady_ + backward_, whole_) + exposed_;
}

bool PartialCost::is_below(const PartialCost& other, std::span<const Onward> onward) const {
  if (!is_at_most(latency_, other.latency_) || !is_at_most(steady_, other.steady_) ||
      !is_at_most(backward_, other.backward_) || !is_at_most(exposed_, other.exposed_) ||
      !is_at_most(fill_, other.fill_) || !is_at_most(whole_, other.whole_)) {
    return false;
  }
  if (!has_lower_ports(other, onward)) return false;
  if (own_.in_flight == 0) return true;
  for (size_t level = 0; level < gaps_.size(); ++level) {
    if (!is_at_most(gaps_[level], other.gaps_[level])) return false;
  }
  return is_covered(own_, other, onward) && std::ranges::all_of(trips_, [&](const Trip& trip) {
           return is_covered(trip, other, onward);
         });
}

bool PartialCost::has_lower_ports(const PartialCost& other, std::span<const Onward> onward) const {
  for (size_t level = 0; level < ports_.size(); ++level) {
    if (is_at_most(ports_[level], other.ports_[level])) continue;
    const bool never_decides = std::ranges::all_of(onward, [&](const Onward& next) {
      const double port = next.wire.port_rounds * next.wire.ports[level];
      return !next.wire.alternates || ports_[level] + port <= other.steady_;
    });
    if (!never_decides) return false;
  }
  return true;
}

bool PartialCost::is_covered(const Trip& trip, const PartialCost& other,
                             std::span<const Onward> onward) const {
  const double round = other.seconds_of_round();
  const auto covers = [&](const Trip& one) {
    return one.in_flight <= trip.in_flight &&
           is_at_most(trip.seconds, one.seconds + round * (trip.in_flight - one.in_flight));
  };
  if (covers(other.own_) || std::ranges::any_of(other.trips_, covers)) return true;
  // The trip from the next stage will take longer for each micro-batch.
  return std::ranges::all_of(onward, [&](const Onward& next) {
    const double there = trip.seconds + 2 * (next.wire.seconds + largest(gaps_));
    return there <= round * (trip.in_flight - next.in_flight);
  });
}

}  // namespace troika::plan
