// Flows of bytes over links that they share fairly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <vector>

namespace troika::plan {

// The bandwidth of an unlimited link.
inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// How a flow uses a link: `weight` bytes cross the link for every byte of the flow.
struct LinkUse {
  int link = 0;
  double weight = 1;

  bool operator==(const LinkUse&) const = default;
};

// The traffic of a link.
struct LinkTraffic {
  double bytes = 0;
  double busy_seconds = 0;  // in which at least one flow used the link
};

// Links with flows whose rates are max-min fair (Bertsekas and Gallager, Data Networks, section
// 6.5.2): all rates grow together until a link is full; the flows of this link keep their rates,
// and the other rates continue to grow. A flow over several links with weights represents messages
// that progress together, such as those of a collective.
//
// Times are seconds and never decrease from call to call. When a flow begins or ends, only the
// rates of the flows that share links with it, directly or through other flows, are recomputed.
// Deterministic.
class SharedLinks {
 public:
  using Flow = size_t;
  struct End {
    double time = 0;
    Flow flow = 0;
  };

  // `bandwidths` are the bytes per second of each link, > 0 or kUnlimited.
  explicit SharedLinks(std::vector<double> bandwidths);

  // Begins a flow of `bytes` >= 0 and returns its number. Each link occurs in `uses` at most once,
  // with a weight > 0. The numbers of ended flows are reused.
  Flow begin(double now, std::vector<LinkUse> uses, double bytes);
  // Returns the next flow to end, and when; nothing if there is no flow.
  std::optional<End> next_end(double now);
  // Ends the flow that next_end() returned, at its time.
  void finish(const End& end);
  // Returns the rate in bytes per second; kUnlimited if no link of the flow is limited.
  double rate(double now, Flow flow);

  // Returns the traffic of each link until now, with what running flows have moved.
  std::vector<LinkTraffic> traffic(double now) const;

 private:
  struct State {
    std::vector<LinkUse> uses;
    double bytes = 0;  // left at time `since`
    double since = 0;
    double rate = 0;
    uint64_t version = 0;   // counts the changes of its rate, and the flows with this number
    bool is_seen = false;   // of connected()
    bool has_rate = false;  // of share()

    double left(double now) const;  // bytes
  };
  // The time at which a flow ends if its rate does not change. Outdated if the flow has another
  // version.
  struct Due {
    double time = 0;
    Flow flow = 0;
    uint64_t version = 0;
    bool operator>(const Due& other) const {
      return time != other.time ? time > other.time : flow > other.flow;
    }
  };

  struct Link {
    double bandwidth = kUnlimited;
    std::vector<Flow> flows = {};  // those of positive size
    double busy_since = 0;         // while it has flows
    // Used by share(): the bandwidth and the weights of flows without a rate.
    double left = 0;
    double weight = 0;
    bool is_seen = false;

    bool is_limited() const { return bandwidth < kUnlimited; }
  };
  // The flows and links whose rates an update changes.
  struct Component {
    std::vector<Flow> flows;
    std::vector<int> links;  // limited ones
  };

  Link& link(int index) { return links_[static_cast<size_t>(index)]; }
  void drop_outdated();
  void update_rates(double now);
  Component connected(int first);
  void share(double now, const Component& component);
  void set_rate(double now, Flow flow, double rate);

  std::vector<Link> links_;
  std::vector<LinkTraffic> traffic_;  // by link: all bytes of begun flows, and ended busy times
  std::vector<State> flows_;
  std::vector<Flow> unused_;
  std::vector<int> changed_;  // limited links whose flows have changed since update_rates()
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
};

}  // namespace troika::plan
