// How a peer gets the state of another one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troika/net/requests.h"
#include "troika/swarm/adaptive_timeout.h"
#include "troika/swarm/alive.h"

namespace troika::swarm {

// The channels of questions and of answers.
inline constexpr net::Channel kStates = 0x5351'0004;
inline constexpr net::Channel kStateAnswers = kStates + 1;

// Names a state. Peers with the same version have the same state.
struct StateVersion {
  int64_t epoch = 0;
  std::string history = {};
  bool is_partial = false;  // see PeerProgress

  bool operator==(const StateVersion&) const = default;
};

struct State {
  StateVersion version;
  std::shared_ptr<const std::string> bytes;
};

struct StateHead;  // of an answer; internal

// Gives states to other peers, and downloads them. A state travels as chunks of 256 KiB in answers
// to requests, four at a time, after all averaging. The donor keeps a snapshot until a minute
// after its last use, so a download does not end when the donor trains on. It has at most two; who
// asks for a third is told that there is no state now. A download continues at another
// donor that has the same bytes, from where it was; otherwise it begins again with that donor's
// state.
//
// Construct, call and destroy it under Endpoint's rules for callbacks.
class StateTransfer {
 public:
  // Returns the bytes of the present state; null: they are not available now.
  using Take = std::function<std::shared_ptr<const std::string>()>;
  // Null: no donor had a state in time.
  using Done = std::function<void(const std::optional<State>&)>;
  // Returns the names of donors, the best one first. Called whenever one has failed.
  using Donors = std::function<std::vector<std::string>()>;

  // Says whether a peer of the run has told that it has this state.
  using Known = std::function<bool(const StateVersion&)>;

  // `most_bytes`: larger states are not downloaded. `take` may be empty: there is never a state.
  StateTransfer(net::Endpoint& endpoint, Take take, uint64_t most_bytes = uint64_t{1} << 36);

  // Says that `take` returns another state from now on.
  void set_version(const StateVersion& version);

  // Downloads a state of at least this epoch; ends a download before without its `done`. `done` is
  // called once, not from within this function, and with null at the latest when `at_most` is over.
  // States of earlier epochs, of versions that are not `known` (empty: any is), of more than
  // `most_bytes`, and bytes with another digest than announced, are refused.
  void download(int64_t least_epoch, Donors donors, net::Duration at_most, Done done,
                Known known = {});
  void cancel() { download_.reset(); }
  bool is_downloading() const { return download_ != nullptr; }
  // The least epoch of the download that runs; 0 without one.
  int64_t least_epoch() const;
  // Bytes of states that came since the beginning.
  uint64_t received() const { return received_; }

 private:
  struct Download;
  struct Snapshot {
    StateVersion version;
    std::shared_ptr<const std::string> bytes;
    std::string digest;
    net::Duration used{};
    bool is_given = false;  // to its end
  };

  std::string answer(const std::string& question);
  Snapshot* current();
  void sweep();
  std::string fault_of(const StateHead& head) const;
  void choose_donor();
  void ask_more();
  void take_answer(uint64_t attempt, uint64_t offset, const net::Result& result,
                   std::string_view answer);
  void fail_donor(const std::string& why, net::Duration avoided_for);
  void end(const std::optional<State>& state);

  net::Endpoint& endpoint_;
  net::Requests requests_;
  const Take take_;
  const uint64_t most_bytes_;
  StateVersion version_;
  std::vector<Snapshot> snapshots_;  // at most one of each version, and two together
  std::shared_ptr<Download> download_;
  AdaptiveTimeout answers_;
  uint64_t attempts_ = 0;
  uint64_t received_ = 0;
  Alive alive_;
};

}  // namespace troika::swarm
