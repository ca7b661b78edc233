// Decides who takes part in each step of a run whose replicas may be lost, and whether the step
// commits. In the manner of TorchFT's lighthouse, but members also vote on each step, so that all
// of them make it or none does.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "troika/quorum/wire.h"

namespace troika::quorum {

// A state machine without threads, sockets or a clock: the same calls have the same results.
// `now` is any clock's time, which never goes back. Not thread-safe.
//
//   found ──► quorum of step s ──► all members vote yes ──► quorum of step s + 1, with joiners
//                 │    ▲
//                 ▼    │ a member is lost, or votes no: the same step again, with those that are
//                 left
//
// A run begins when Rules::replicas have joined, or after the join timeout with min_replicas. The
// member of the lowest rank founds it from a state of its own, and the others get that state. If
// all members are lost, those that joined meanwhile found the run again.
//
// At the end of the run, the member of the lowest rank saves the final state while the others wait.
// If it is lost, the next one saves.
class Lighthouse {
 public:
  // Takes a member's report. Reports of unknown members are ignored, except `join`.
  void take(const std::string& name, const Report& report, net::Duration now);
  // The member's connection has ended.
  void lose(const std::string& name, net::Duration now);
  // Must be called several times within the heartbeat timeout.
  void tick(net::Duration now);
  // The lighthouse itself stood still for this time, in which it heard no member.
  void excuse(net::Duration gap);

  // Returns the messages to send since the last call, in order, each with its receiver.
  std::vector<std::pair<std::string, News>> take_news() { return std::exchange(news_, {}); }
  const Totals& totals() const { return totals_; }
  // The process groups of members that lost their place since the last call, and may still run.
  std::vector<int64_t> take_refused() { return std::exchange(refused_, {}); }

 private:
  struct Known {
    int rank = 0;
    int64_t process_group = 0;
    std::vector<net::Address> addresses;
    net::Duration heard{};
  };

  void name_run(const std::string& name, const std::string& text);
  void join(const std::string& name, const Report& report, net::Duration now);
  void vote(const std::string& name, const Report& report, net::Duration now);
  void remove(const std::string& name, net::Duration now);
  void refuse(const std::string& name, const std::string& why, net::Duration now);
  void refuse_all(const std::string& why);
  // Names the founder if enough replicas have joined.
  void found(net::Duration now);
  // Forms the first quorum of a step, with all that wait, unless too few are there.
  void begin(int64_t step, net::Duration now);
  // Refuses the members without `has` at the end of the time for it.
  void refuse_late(const std::set<std::string>& has, const std::string& what, net::Duration now);
  // A member has saved the final state and left.
  void finish(const std::string& name);
  void forget_all();
  // Tells the member of the lowest rank to save if it has made the last step.
  void choose_saver();
  // Sends the quorum to its members, under a new id.
  void send_quorum();
  std::string waiting_text() const;
  void tell_waiting();
  bool is_up_to_date(const QuorumMember& member) const { return member.donor.empty(); }

  std::optional<Rules> rules_;
  std::map<std::string, Known> known_;
  // The name of the run: of the first member that chose one. `askers` wait for it; the first of
  // them chooses it.
  struct {
    std::string text;
    std::vector<std::string> askers;
  } run_name_;
  std::string founder_;           // until it is ready
  std::optional<Quorum> quorum_;  // of the current step
  bool is_pending_ = false;       // quorum_ has the survivors of a step that waits for replicas
  // Members of the current quorum that have begun their sum, and that voted for the step. The
  // others are late at the ends.
  struct {
    std::set<std::string> summing, votes;
    std::optional<net::Duration> sum_end, vote_end;
  } attempt_;
  int refusals_ = 0;                       // of quorums with the same members, one after another
  std::optional<net::Duration> wait_end_;  // for replicas
  std::set<std::string> done_;             // members that have made the last step
  bool is_finished_ = false;
  int64_t last_id_ = 0;
  Totals totals_;
  std::vector<int64_t> refused_;
  std::vector<std::pair<std::string, News>> news_;
};

}  // namespace troika::quorum
