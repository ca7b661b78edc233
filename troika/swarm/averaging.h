// Averages of the vectors of a group of peers: a butterfly all-reduce, in which each peer reduces
// one part of the vector (DeDLOC, section 3.1; hivemind). Peers may be lost at any time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "troika/net/endpoint.h"
#include "troika/net/packing.h"
#include "troika/swarm/alive.h"

namespace troika::swarm {

inline constexpr net::Channel kAveraging = 0x5351'0001;

enum class Mode : uint8_t {
  node,       // contributes, reduces a part, and gets averages
  client,     // contributes and gets averages; reduces nothing
  auxiliary,  // only reduces a part
};

// The same on all its members.
struct AveragingGroup {
  struct Member {
    std::string name;  // of its endpoint
    Mode mode = Mode::node;
    size_t part = 0;  // numbers that it reduces; 0 for clients. The parts follow each other
  };

  uint64_t id = 0;              // used once
  std::vector<Member> members;  // in the order of sums
};

// The sums of so large weights are exact enough.
inline constexpr double kMostWeight = 1e15;
// Whether a member may have this weight. False for NaN.
inline bool is_weight(double weight) {
  return weight >= 0 && weight <= kMostWeight;
}

// How a reducer combines the contributions to a chunk.
enum class Aggregation : uint8_t {
  mean,          // sum w x / sum w
  centred_clip,  // centred_clip.h: for swarms in which some peers may lie
};

// How an averaging treats its numbers. The same on all members.
template <typename Number>
struct AveragingOptions {
  // A contributor is lost for a reducer if nothing came from it for this time, while the reducer
  // waits for it. A reducer is lost for a contributor after twice this time.
  net::Duration sender_timeout = std::chrono::seconds(30);
  // How the numbers travel; without functions: as they are. Its block has at most 2^16 numbers.
  net::Packing<Number> packing = {};
  Aggregation aggregation = Aggregation::mean;
};

struct AveragingResult {
  struct Part {
    std::string reducer;
    size_t first = 0, count = 0;  // numbers of the vector
    size_t averaged = 0;          // of them; the others have this peer's own values
    std::string problem = {};     // why not all
  };

  bool is_cancelled = false;
  std::vector<Part> parts = {};                      // of each reducer, empty for auxiliary peers
  std::map<std::string, std::string> excluded = {};  // contributors that this peer lost, and why
  // With Aggregation::centred_clip, contributors whose numbers are far from those of the others in
  // most of what this peer reduced.
  std::set<std::string> far = {};
  // The least sum of weights of an average that this peer computed or got; 0: there was none.
  double weight = 0;
  uint64_t sent = 0;  // bytes of packed numbers
  uint64_t received = 0;

  // Whether all numbers have been averaged.
  bool is_complete() const;
};

// Why a member is excluded that has sent such numbers.
inline constexpr const char* kNotFinite = "it sent numbers that are not finite";
// Why a member that did not answer in time is excluded, or its part not averaged.
inline constexpr const char* kSilent = "it was silent for too long";

class AveragingRound;

// The averagings of one endpoint. Several may run at a time. Construct, call and destroy it under
// Endpoint's rules for callbacks.
//
// Each member of a group begins the averaging by itself, with connections to the others; clients
// need none to each other. A reducer tells contributors that it has begun. They send it their
// numbers of its part, as chunks of at most 512 KiB before packing. It adds w x of all contributors
// in float64 and in the order of members, divides by the sum of w, and sends the result to each.
// Its own numbers, and the average, go through the packing, too, so all members have the same bits.
// With a packing, these do not depend on the parts, if the parts begin at multiples of its block.
// A member that is alone packs nothing.
//
// A contributor that is lost, silent, or sends wrong or non-finite numbers is left out of all
// chunks that are not reduced yet, with its weight. A reducer that is lost or silent leaves the
// rest of its part as it was. So does an average that is not finite, for its chunk. Each number of
// a vector is thus the exact weighted average of a set of members, or unchanged.
class Averager {
 public:
  // `endpoint` must outlive it.
  explicit Averager(net::Endpoint& endpoint);
  // Running averagings end without a result.
  ~Averager();
  Averager(const Averager&) = delete;
  Averager& operator=(const Averager&) = delete;

  // To be called for each change that the endpoint's listener gets.
  void take_change(const net::PeerChange& change);

  // Begins an averaging of `values`, in place; `done` is called once, never from within begin().
  // Until then only the averaging may use the values. `weight`: in [0, kMostWeight]; with 0
  // the values do not count. Ignored, with the values, for an auxiliary peer, whose `values` may be
  // null. Throws Error(swarm, usage) unless the group has this endpoint once and its parts fit.
  template <typename Number>
  void begin(const AveragingGroup& group, std::shared_ptr<std::vector<Number>> values,
             double weight, AveragingOptions<Number> options,
             std::function<void(const AveragingResult&)> done);
  // Ends an averaging at once: `done` is called with what has been averaged. The others lose this
  // member as if it were gone. Does nothing if it has ended.
  void cancel(uint64_t group);

 private:
  void take(const std::string& peer, const std::string& message);

  net::Endpoint& endpoint_;
  std::map<uint64_t, std::shared_ptr<AveragingRound>> rounds_;
  // Reducers that began before this peer, with the time of their message.
  std::map<std::pair<uint64_t, std::string>, net::Duration> early_;
  std::deque<uint64_t> ended_;  // the last ones
  Alive alive_;
};

}  // namespace troika::swarm
