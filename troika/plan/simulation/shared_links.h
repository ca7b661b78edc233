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

// The bandwidth of a link that limits nothing.
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
  double busy_seconds = 0;  // in which at least one flow used it
};

// Links with flows whose rates are max-min fair (Bertsekas and Gallager, Data Networks, section
// 6.5.2): all rates grow together until a link is full; its flows keep their rate, and the others
// go on. A flow over several links with weights stands for messages that progress together, as
// those of a collective.
//
// Times are seconds and never decrease from call to call. Only rates of flows that share links,
// directly or through others, with one that begins or ends are computed anew. Deterministic.
class SharedLinks {
 public:
  using Flow = size_t;
  struct End {
    double time = 0;
    Flow flow = 0;
  };

  // `bandwidths` are the bytes per second of each link, > 0 or kUnlimited.
  explicit SharedLinks(std::vector<double> bandwidths);

  // Begins a flow of `bytes` >= 0. Each link occurs in `uses` at most once, with a weight > 0. The
  // number of a flow that has ended is used again.
  Flow begin(double now, std::vector<LinkUse> uses, double bytes);
  // Returns the next flow to end, and when; nothing if there is no flow.
  std::optional<End> next_end(double now);
  // Ends the flow that next_end() returned, at its time.
  void finish(const End& end);
  // Bytes per second; kUnlimited for a flow that no link limits.
  double rate(double now, Flow flow);

  const std::vector<LinkTraffic>& traffic() const { return traffic_; }

 private:
  struct State {
    std::vector<LinkUse> uses;
    double bytes = 0;  // left at time `since`
    double since = 0;
    double rate = 0;
    uint64_t version = 0;   // counts its rates, and the flows that had its number
    bool is_seen = false;   // of connected()
    bool has_rate = false;  // of share()
  };
  // The end of a flow at one of its rates; outdated if the version is.
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
  // The flows and links that an update concerns.
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
  std::vector<LinkTraffic> traffic_;  // by link
  std::vector<State> flows_;
  std::vector<Flow> unused_;
  std::vector<int> changed_;  // limited links whose flows have changed since update_rates()
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
};

}  // namespace troika::plan
