// A replica's side of a quorum: its place in each step, sums over the members, and the state of a
// member that has it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "troika/net/packing.h"
#include "troika/net/tcp_endpoint.h"
#include "troika/quorum/wire.h"

namespace troika::quorum {

// The parts of a step between which a test may lose the process.
enum class Phase { before_sum, in_sum, before_vote, after_vote };

struct MemberOptions {
  int rank = 0;
  net::Address lighthouse;
  net::Secret secret;
  Rules rules;
  double connect_timeout = 60;  // seconds, to reach the lighthouse
  std::function<void(Phase)> on_phase = {};
};

// How a member begins.
struct Admission {
  bool founds = false;        // from a state of its own
  bool founds_again = false;  // all replicas that trained are lost
  bool is_finished = false;   // the run has ended
  bool is_stopped = false;    // `stops` returned true
  int64_t step = 0;           // of the donor's state
  std::string state = {};     // the donor's
};

// All functions block, at most for the time-outs of the rules, except join() and begin_step(),
// which wait as long as other members train. They throw Error(quorum, peer) if the lighthouse is
// lost, or gives this member no place any more, with its reason. Used by one thread.
//
//   Member member(options);
//   const auto admission = member.join();
//   for (int64_t step = ...;; ++step) {
//     const auto share = member.begin_step(step, [&] { return state(); });
//     const auto sum = member.sum<double>(size, fill);  // commits the step
//   }
//   member.leave(true);
class Member {
 public:
  // Connects to the lighthouse.
  explicit Member(MemberOptions options);
  // A member that has not left is lost to the others.
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // Returns the name of the run, which is not empty. The first member that asks chooses it by
  // `choose`; the others wait for it.
  std::string name_run(const std::function<std::string()>& choose);
  // Joins the run. Returns when this member founds it or has a donor's state. `stops`: as of
  // begin_step().
  Admission join(const std::function<bool()>& stops = [] { return false; });
  // Waits for the quorum of the step, which must follow the last committed one. Calls `state`,
  // which returns the state at the beginning of the step, if a new member gets it from this one;
  // sends it while this member goes on. Returns nullopt if `stops`, which is called about ten times
  // a second under the rules for callbacks, returned true first.
  std::optional<Share> begin_step(
      int64_t step, const std::function<std::string()>& state,
      const std::function<bool()>& stops = [] { return false; });
  // Sums numbers over the members, and commits the step. `fill` writes this member's numbers;
  // `is_first` is true on exactly one of the members. It is called again after other members were
  // lost. Returns the sum over the members of counted(), the same bits on all. `packing`: how the
  // numbers travel; null: as they are. A thread other than that of begin_step() may call this,
  // while no other function but abandon() is called.
  template <typename Number>
  std::vector<Number> sum(size_t size,
                          const std::function<void(std::span<Number>, bool is_first)>& fill,
                          const net::Packing<Number>* packing = nullptr);
  // Whether this member is the one of the lowest rank that has the state, in the current quorum or,
  // while replicas are missing, in that of the last sum().
  bool is_lowest();
  // The quorum that the last sum() was over.
  const Quorum& counted() const { return counted_; }
  // This member's part of the current step.
  Share share();
  // Before the current step.
  Totals totals();
  // Called after the last step of the run. Blocks until this member must save the final state,
  // because all of lower ranks are lost, and returns true; or until one has saved it and left.
  // False, too, if `stops`, as of begin_step(), returned true first.
  bool must_save(const std::function<bool()>& stops = [] { return false; });
  // Leaves before the next step. `is_finished`: because the run is, and its final state is saved.
  void leave(bool is_finished);
  // Ends the membership after a failure, as the end of the process would. A sum() in another thread
  // throws Error(quorum, peer).
  void abandon();

 private:
  void beat();
  void report(const Report& report);
  void take(const News& news);
  // Waits under the rules for callbacks until `is_over`, or throws what ended the membership.
  void wait(const std::function<bool()>& is_over, const std::string& what);
  void throw_problem();
  // Returns false if `stops` returned true first.
  bool connect(const QuorumMember& peer, bool dials, const std::function<bool()>& stops,
               net::Duration at_most);
  // Returns the state of the step from the donor; nullopt if another quorum is there first.
  std::optional<std::string> heal(const Quorum& quorum, const QuorumMember& donor,
                                  const std::function<bool()>& is_stopped);
  void give_state(const std::string& peer, int64_t step);
  template <typename Number>
  bool try_sum(const Quorum& quorum, std::shared_ptr<std::vector<Number>> values,
               const net::Packing<Number>* packing, std::string& problem);
  // Throws Error(peer) if another replica has finished the run.
  void require_unfinished(int64_t step);
  // Throws Error(peer).
  [[noreturn]] void lose_place(int64_t step) const;
  // Has messages for the sum over a quorum dropped until a step is committed.
  void drop(int64_t id);
  bool founds();
  Quorum current();

  // Whether the lighthouse has told this member to found the run; again: after a loss of all.
  enum class Founding { none, first, again };
  // saves: this member saves the final state. finished: the run has ended.
  enum class Ending { none, saves, finished };

  const MemberOptions options_;
  const net::Duration heartbeat_;
  // Used under the rules for callbacks:
  News news_;  // the latest with a quorum
  Founding founds_ = Founding::none;
  Ending ending_ = Ending::none;
  std::optional<std::string> name_;           // of the run; empty: this member chooses it
  std::string refusal_;                       // why the membership ended
  bool has_lost_ = false;                     // the lighthouse
  std::set<std::string> peers_;               // connected
  std::shared_ptr<const std::string> state_;  // for patients, of step news_.quorum.step
  std::set<std::string> patients_;            // that asked for it before it was there
  int64_t healed_ = -1;                       // the step whose state this member got from a donor
  Quorum counted_;
  std::vector<net::Channel> old_sums_;  // whose late messages are dropped
  net::TcpEndpoint endpoint_;           // ends first, because its callbacks use the others
};

}  // namespace troika::quorum
