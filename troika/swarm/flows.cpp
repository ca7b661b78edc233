#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "troika/base/error.h"
#include "troika/swarm/shares.h"
#include "troika/swarm/simplex.h"

namespace troika::swarm {

namespace {

// The variables: raw i -> j, averaged i -> j, and the rate.
class FlowProgramme {
 public:
  FlowProgramme(std::span<const FlowPeer> peers, double unit) : peers_(peers), unit_(unit) {
    programme_.objective.resize(2 * peers.size() * peers.size() + 1);
    programme_.objective.back() = 1;
  }

  size_t raw(size_t from, size_t to) const { return from * peers_.size() + to; }
  size_t averaged(size_t from, size_t to) const {
    return peers_.size() * peers_.size() + raw(from, to);
  }
  size_t rate() const { return programme_.objective.size() - 1; }

  const LinearProgramme& build(double most_rate) {
    for (size_t i = 0; i < peers_.size(); ++i) {
      add_averages(i);
      add_link(i, true);
      add_link(i, false);
    }
    if (std::isfinite(most_rate)) programme_.rows.push_back({{{rate(), 1.0}}, most_rate / unit_});
    return programme_;
  }

 private:
  // The averages that peer i sends, and those that it gets.
  void add_averages(size_t i) {
    LinearProgramme::Row gets{.terms = {{rate(), 1.0}}};
    for (size_t j = 0; j < peers_.size(); ++j) {
      gets.terms.push_back({averaged(j, i), -1});
      if (!peers_[i].reduces || !peers_[j].computes) {
        programme_.rows.push_back({{{averaged(i, j), 1.0}}, 0});
        continue;
      }
      for (size_t k = 0; k < peers_.size(); ++k) {
        if (!peers_[k].computes) continue;
        programme_.rows.push_back({{{averaged(i, j), 1.0}, {raw(k, i), -1.0}}, 0});
      }
    }
    if (peers_[i].computes) programme_.rows.push_back(std::move(gets));
  }

  // A peer's own part costs no bandwidth.
  void add_link(size_t i, bool is_up) {
    LinearProgramme::Row link{.terms = {},
                              .bound = (is_up ? peers_[i].up : peers_[i].down) / unit_};
    for (size_t j = 0; j < peers_.size(); ++j) {
      if (j == i) continue;
      link.terms.push_back({is_up ? raw(i, j) : raw(j, i), 1});
      link.terms.push_back({is_up ? averaged(i, j) : averaged(j, i), 1});
    }
    programme_.rows.push_back(std::move(link));
  }

  const std::span<const FlowPeer> peers_;
  const double unit_;
  LinearProgramme programme_;
};

}  // namespace

Flows optimal_flows(std::span<const FlowPeer> peers, double most_rate) {
  double unit = 0;
  for (const auto& peer : peers) {
    for (const double rate : {peer.up, peer.down}) {
      if (!std::isfinite(rate) || rate < 0) {
        throw Error("swarm", ErrorKind::usage,
                    {.what = "the bandwidth of a peer",
                     .got = fmt::format("{}", rate),
                     .expected = "a finite number of bytes per second from 0"});
      }
      unit = std::max(unit, rate);
    }
  }
  const bool is_possible = std::ranges::any_of(peers, &FlowPeer::computes) &&
                           std::ranges::any_of(peers, &FlowPeer::reduces) && unit > 0;
  if (!is_possible) {
    throw Error("swarm", ErrorKind::usage,
                {.what = "peers of an averaging",
                 .got = fmt::format("{} peers", peers.size()),
                 .expected = "a link with a bandwidth, a peer that computes and one that reduces"});
  }
  FlowProgramme programme(peers, unit);
  const auto optimum = maximize(programme.build(most_rate));
  Flows flows{.rate = optimum.value * unit, .raw = {}, .averaged = {}};
  for (size_t i = 0; i < peers.size(); ++i) {
    for (size_t j = 0; j < peers.size(); ++j) {
      // A flow to itself is bounded by nothing.
      flows.raw.push_back(i == j ? 0 : optimum.x[programme.raw(i, j)] * unit);
      flows.averaged.push_back(optimum.x[programme.averaged(i, j)] * unit);
    }
  }
  return flows;
}

std::vector<double> Flows::fractions() const {
  const auto peers = static_cast<size_t>(std::lround(std::sqrt(static_cast<double>(raw.size()))));
  std::vector<double> result(peers);
  double sum = 0;
  for (size_t i = 0; i < peers; ++i) {
    for (size_t j = 0; j < peers; ++j) result[i] += averaged[i * peers + j];
    sum += result[i];
  }
  for (auto& fraction : result) fraction /= sum;
  return result;
}

}  // namespace troika::swarm
