#include "troika/plan/simulation/shared_links.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "troika/base/error.h"

namespace troika::plan {

SharedLinks::SharedLinks(std::vector<double> bandwidths) : traffic_(bandwidths.size()) {
  for (const double bandwidth : bandwidths) {
    TROIKA_CHECK(bandwidth > 0, "the bandwidth of a link");
    links_.push_back({.bandwidth = bandwidth});
  }
}

SharedLinks::Flow SharedLinks::begin(double now, std::vector<LinkUse> uses, double bytes) {
  TROIKA_CHECK(bytes >= 0, "the size of a flow");
  if (unused_.empty()) {
    unused_.push_back(flows_.size());
    flows_.emplace_back();
  }
  const Flow flow = unused_.back();
  unused_.pop_back();
  auto& state = flows_[flow];
  state.uses = std::move(uses);
  state.bytes = bytes;
  state.since = now;
  state.rate = 0;
  bool is_limited = false;
  for (const auto& use : state.uses) {
    traffic_[static_cast<size_t>(use.link)].bytes += use.weight * bytes;
    auto& one = link(use.link);
    if (bytes == 0 || !one.is_limited()) continue;
    is_limited = true;
    if (one.flows.empty()) one.busy_since = now;
    one.flows.push_back(flow);
    changed_.push_back(use.link);
  }
  if (!is_limited) set_rate(now, flow, kUnlimited);
  return flow;
}

std::optional<SharedLinks::End> SharedLinks::next_end(double now) {
  // A flow that ends now ends whatever its rate is, so rates are only updated if there is none.
  drop_outdated();
  if (due_.empty() || due_.top().time > now) {
    update_rates(now);
    drop_outdated();
  }
  if (due_.empty()) return std::nullopt;
  return End{due_.top().time, due_.top().flow};
}

void SharedLinks::drop_outdated() {
  while (!due_.empty() && due_.top().version != flows_[due_.top().flow].version) due_.pop();
}

void SharedLinks::finish(const End& end) {
  auto& state = flows_[end.flow];
  for (const auto& use : state.uses) {
    auto& one = link(use.link);
    const auto found = std::ranges::find(one.flows, end.flow);
    if (found == one.flows.end()) continue;  // unlimited, or the flow has no bytes
    one.flows.erase(found);
    changed_.push_back(use.link);
    if (one.flows.empty()) {
      traffic_[static_cast<size_t>(use.link)].busy_seconds += end.time - one.busy_since;
    }
  }
  ++state.version;
  state.uses.clear();
  unused_.push_back(end.flow);
}

double SharedLinks::rate(double now, Flow flow) {
  update_rates(now);
  return flows_[flow].rate;
}

std::vector<LinkTraffic> SharedLinks::traffic(double now) const {
  auto traffic = traffic_;
  for (const auto& state : flows_) {
    for (const auto& use : state.uses) {
      traffic[static_cast<size_t>(use.link)].bytes -= use.weight * state.left(now);
    }
  }
  for (size_t i = 0; i < links_.size(); ++i) {
    if (!links_[i].flows.empty()) traffic[i].busy_seconds += now - links_[i].busy_since;
  }
  return traffic;
}

double SharedLinks::State::left(double now) const {
  if (!(rate < kUnlimited)) return 0;
  return std::max(0.0, bytes - rate * (now - since));
}

void SharedLinks::update_rates(double now) {
  const auto changed = std::exchange(changed_, {});
  std::vector<Component> components;
  for (const int first : changed) {
    if (!link(first).is_seen) components.push_back(connected(first));
  }
  for (const auto& component : components) {
    share(now, component);
    for (const Flow flow : component.flows) flows_[flow].is_seen = false;
    for (const int index : component.links) link(index).is_seen = false;
  }
}

SharedLinks::Component SharedLinks::connected(int first) {
  Component component;
  component.links.push_back(first);
  link(first).is_seen = true;
  for (size_t next = 0; next < component.links.size(); ++next) {
    for (const Flow flow : link(component.links[next]).flows) {
      auto& state = flows_[flow];
      if (std::exchange(state.is_seen, true)) continue;
      component.flows.push_back(flow);
      for (const auto& use : state.uses) {
        if (!link(use.link).is_limited() || std::exchange(link(use.link).is_seen, true)) continue;
        component.links.push_back(use.link);
      }
    }
  }
  return component;
}

void SharedLinks::share(double now, const Component& component) {
  // The rate at which a link would be full if all its flows without a rate had this rate. This rate
  // never decreases while flows get their rates, so an outdated entry of the queue is recognized
  // when it is taken.
  using Level = std::pair<double, int>;
  std::priority_queue<Level, std::vector<Level>, std::greater<>> levels;
  for (const int index : component.links) {
    link(index).left = link(index).bandwidth;
    link(index).weight = 0;
  }
  for (const Flow flow : component.flows) {
    flows_[flow].has_rate = false;
    for (const auto& use : flows_[flow].uses) link(use.link).weight += use.weight;
  }
  const auto level_of = [&](int index) {
    return std::max(link(index).left, 0.0) / link(index).weight;
  };
  for (const int index : component.links) {
    if (!link(index).flows.empty()) levels.emplace(level_of(index), index);
  }
  size_t without_rate = component.flows.size();
  while (without_rate > 0) {
    const auto [level, index] = levels.top();
    levels.pop();
    const auto& full = link(index).flows;
    if (std::ranges::all_of(full, [&](Flow flow) { return flows_[flow].has_rate; })) continue;
    if (const double now_at = level_of(index); now_at > level) {
      levels.emplace(now_at, index);
      continue;
    }
    for (const Flow flow : full) {
      auto& state = flows_[flow];
      if (std::exchange(state.has_rate, true)) continue;
      --without_rate;
      for (const auto& use : state.uses) {
        link(use.link).left -= use.weight * level;
        link(use.link).weight -= use.weight;
      }
      set_rate(now, flow, level);
    }
  }
}

void SharedLinks::set_rate(double now, Flow flow, double rate) {
  auto& state = flows_[flow];
  if (rate == state.rate) return;
  state.bytes = state.left(now);
  state.since = now;
  state.rate = rate;
  const double seconds = state.bytes > 0 && rate < kUnlimited ? state.bytes / rate : 0;
  due_.push({now + seconds, flow, ++state.version});
}

}  // namespace troika::plan
