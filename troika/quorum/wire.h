// The messages between the members of a quorum and their lighthouse: JSON.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "troika/net/dial.h"
#include "troika/net/endpoint.h"

namespace troika::quorum {

inline constexpr const char* kLighthouse = "lighthouse";
// TorchFT's default port.
inline constexpr int kDefaultPort = 29510;

inline constexpr net::Channel kToLighthouse = 1;
inline constexpr net::Channel kFromLighthouse = 2;
inline constexpr net::Channel kHealRequests = 3;
// Plus the step of the state, and plus the id of the quorum.
inline constexpr net::Channel kHealing = net::Channel{1} << 48;
inline constexpr net::Channel kSums = net::Channel{2} << 48;
// The greatest size of a control message, in bytes.
inline constexpr size_t kMostControl = size_t{1} << 20;

// Longer than any run.
inline constexpr net::Duration kForever = std::chrono::hours(24 * 365);

inline net::Duration seconds(double count) {
  return std::chrono::duration_cast<net::Duration>(std::chrono::duration<double>(count));
}

// All members of a run must have the same rules.
struct Rules {
  int replicas = 1;          // that were launched
  int min_replicas = 1;      // a step begins with at least this number
  int64_t global_batch = 1;  // samples of a step, which its members share
  // Batches of each member between two sums: a step of the quorum is so many steps of a member.
  int64_t inner_steps = 1;
  double join_timeout = 60;  // seconds to wait for replicas, at the start and below min_replicas
  double heartbeat_timeout = 5;  // a member that is silent for this number of seconds is lost
  // Seconds from the first member that begins its sum, or votes, until the members that have not
  // are lost.
  double timeout = 300;

  bool operator==(const Rules&) const = default;
};

// A member's part of a step: samples [first, first + count) of its global batch.
struct Share {
  int64_t first = 0;
  int64_t count = 0;

  bool operator==(const Share&) const = default;
};

struct QuorumMember {
  std::string name;
  int rank = 0;
  std::vector<net::Address> addresses = {};
  Share share = {};
  // The member from which this one gets the state at the beginning of the step; empty: it has it.
  std::string donor = {};
};

// Samples, and replicas lost, since the lighthouse began.
struct Totals {
  int64_t begun = 0;    // in the shares of steps that began
  int64_t counted = 0;  // in the gradients of committed steps
  int64_t lost = 0;     // replicas

  bool operator==(const Totals&) const = default;
};

// Who takes part in a step. Quorums of the same step have the same shares, and fewer members each.
struct Quorum {
  int64_t id = 0;  // grows
  int64_t step = 0;
  std::vector<QuorumMember> members = {};  // by rank
  Totals totals = {};                      // before the step

  // Null if `name` is no member.
  const QuorumMember* find(const std::string& name) const;
  // Samples of all members.
  int64_t samples() const;
};

// From a member to the lighthouse.
struct Report {
  enum class Kind : int {
    name,     // asks for the name of the run, or gives it: `text`
    join,     // with rank, process group, addresses and rules
    ready,    // the founder is at `step`
    healed,   // has the state of `step`
    summing,  // begins its sum over quorum `id`
    vote,     // on quorum `id`: `ok`, or `text` says what failed
    done,     // has made the last step of the run
    leave,    // `ok`: because the run is finished
    heartbeat
  };
  Kind kind = Kind::heartbeat;
  int rank = 0;
  int64_t process_group = 0;
  std::vector<net::Address> addresses = {};
  Rules rules = {};
  int64_t step = 0;
  int64_t id = 0;
  bool ok = false;
  std::string text = {};
};

// From the lighthouse to a member.
struct News {
  enum class Kind : int {
    name,      // of the run: `text`; empty: the member chooses it
    found,     // the member begins the run from a state of its own; again, if `quorum` has an id
    quorum,    // `quorum` has the member. An earlier step is committed
    waiting,   // for replicas, as `text` says. Steps before `quorum.step` are committed
    save,      // the member saves the final state of the run, and leaves then
    refused,   // the member has no place any more, because of `text`
    finished,  // the run is finished
  };
  Kind kind = Kind::waiting;
  Quorum quorum = {};
  std::string text = {};
};

std::string to_json(const Report& report);
std::string to_json(const News& news);
// Throw Error(quorum, failure) for other texts.
Report report_from_json(const std::string& text);
News news_from_json(const std::string& text);

}  // namespace troika::quorum
