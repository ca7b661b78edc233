// Tracks which ranks of a world failed, left or are late, so that a group can name the cause
// instead of hanging.
#pragma once

#include <bitset>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/cluster/rendezvous/answers.h"
#include "troika/comm/diagnostics/call_watch.h"
#include "troika/comm/diagnostics/departed_ranks.h"
#include "troika/comm/diagnostics/failed_groups.h"
#include "troika/comm/diagnostics/group_register.h"
#include "troika/comm/diagnostics/rank_names.h"
#include "troika/comm/diagnostics/recorder.h"
#include "troika/comm/diagnostics/wake_functions.h"
#include "troika/comm/diagnostics/world_loss.h"

namespace troika::comm {

// The channel by which the ranks of a world notify each other outside of their messages. The
// listener is called on separate threads until leave() or fail() has returned.
class ControlPlane {
 public:
  struct Listener {
    std::function<void(int rank, const std::string& why)> lost;
    std::function<void(int rank, const std::string& farewell)> left;
    std::function<std::string(const std::string& question)> answer;
  };

  virtual ~ControlPlane() = default;
  virtual void listen(Listener listener) = 0;
  // Reports this rank as lost and tells the others why.
  virtual void fail(const std::string& why) = 0;
  virtual void leave(const std::string& farewell) = 0;
  // Asks all ranks and returns their answers. Does not throw. Returns no answers after leave().
  virtual cluster::Answers ask_all(const std::string& question, Deadline deadline) = 0;
};

// A transport only shows that some connection broke, often to a rank that itself failed because of
// another rank. The control plane knows within milliseconds which rank was lost first, also where
// the transport would show nothing. One lifeline serves a world and every group split from it: the
// loss of a rank ends all of them. A group that fails alone is marked by its tag space, which is
// not reused. The lifeline warns of stalled calls, and writes flight records when the world is
// lost. All functions may be called from any thread.
class Lifeline {
 public:
  Lifeline(std::unique_ptr<ControlPlane> plane, int world_rank);
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  int world_rank() const { return world_rank_; }

  // Names ranks by their coordinates too, from now on, if the mesh has several axes.
  void place_ranks(const layout::Mesh& mesh) { names_.place(mesh); }
  // Returns the name of a rank of the world: "rank 5", or "rank 5 = pipeline 1, data 0, tensor 1".
  std::string rank_name(int world_rank) const { return names_.name(world_rank); }
  // Returns "pipeline 1, data 0, tensor 1"; empty if ranks have no coordinates.
  std::string place(int world_rank) const { return names_.place_of(world_rank); }

  // Registers a function that ends pending waits. It is called on another thread, or inside
  // abandon(), when the world is lost and before the other ranks are notified. One per owner; an
  // empty function unregisters. The function must not call wake_with().
  void wake_with(const void* owner, std::function<void()> wake) {
    wakes_.set(owner, std::move(wake));
  }

  bool is_cut() const { return loss_.is_set(); }
  // Whether the world is lost, or the group of that tag space has failed alone.
  bool is_cut(uint32_t tag_space) const { return loss_.is_set() || failures_.is_failed(tag_space); }
  // Whether the group of that tag space fails alone.
  bool fails_alone(uint32_t tag_space) const { return failures_.fails_alone(tag_space); }
  // Whether another rank reported the loss.
  bool heard_of_loss() const { return loss_.is_reported(); }
  // The first loss, if any.
  std::optional<Error> cause() const { return loss_.cause(); }
  // The first loss, if any; otherwise the cause of the group of that tag space, if it has failed
  // alone.
  std::optional<Error> cause(uint32_t tag_space) const;
  // Throws the first loss, if any: an Error that names the rank and its reason, of the kind that
  // rank failed with.
  void require_live() const;
  // Throws cause(tag_space), if any.
  void require_live(uint32_t tag_space) const;
  // Like require_live(), but first gives the notice of a loss a moment to arrive: a broken
  // connection may be seen before the notice.
  void explain_broken_connection() const;
  // Called when the back end has seen the end of that rank's process. Cuts this rank's lifeline;
  // the other ranks see it themselves or are notified.
  void witness_death(int world_rank);
  // Whether that rank of the world has left normally.
  bool has_left(int world_rank) const;
  // Reports that this rank fails and makes no further calls; notifies the other ranks. Only the
  // first cause counts.
  void abandon(const Error& cause);
  // Does what abandon() does, if the program of this rank failed for any reason.
  void abandon_for_program();
  // Do the same for a group that fails alone: notify only its members.
  void abandon_group(uint32_t id, const Error& cause);
  void abandon_group_for_program(uint32_t id);
  // Leaves normally, unless abandon() was called before. Call this before the connections close.
  // The destructor calls it as well.
  void leave();

  // Ids for groups that are split off. next_id() returns an id that no group of this rank has had;
  // take_id() marks an id as used.
  int64_t next_id() const;
  void take_id(int64_t id);
  // The tag spaces of the groups this rank is in, and of the groups that have failed alone.
  static constexpr size_t kTagSpaces = FailedGroups::kTagSpaces;
  std::bitset<kTagSpaces> tag_spaces() const;
  void enrol(Enrolment group);
  void dismiss(uint32_t id);
  // Throws Error(peer) that names a member that left before call `sequence`.
  void require_present(uint32_t id, int64_t sequence) const;
  // Returns in words who is missing in call `sequence`: "rank 2 has not called it (last: ...)";
  // empty if nobody is.
  std::string missing(uint32_t id, int64_t sequence, Deadline deadline);

  // Asks the other end of a message of group `id` for the state of the message. Returns the state
  // in words, e.g. "rank 1 has not sent it (last: ...)", or an empty string if the other end cannot
  // be asked. If the other end also waits for a message, follows the chain of waiting ranks and
  // adds the state of the last one.
  std::string other_end(uint32_t id, const MessageFingerprint& message, Deadline deadline);

  // Writes the record of every group that has a folder for it, once, with the last known statuses.
  // The second function writes the record of one group that has failed alone.
  void write_flight_records(const std::string& cause);
  void write_flight_record_of(uint32_t id, const std::string& cause);

 private:
  // Long enough for a notice inside a cluster, short enough not to delay an error noticeably.
  static constexpr Milliseconds kNewsTime{1000};
  // The question for the account of a rank. Other questions are about a message, or are the id of a
  // group.
  static constexpr const char* kAllGroups = "all";

  // The members of a group. For each member: its status, or the rank that did not answer, which
  // is the member itself or a rank that relays for it.
  struct Members {
    std::vector<int> ranks;
    RankStatuses statuses;
    std::vector<int> silent;
  };

  // The cause and its kind as one text for the wire.
  static std::string with_kind(const Error& cause);
  Error loss_of(int rank, const std::string& why) const;
  Members ask_members(uint32_t id, Deadline deadline);
  void await_losses(const std::vector<int>& ranks, const cluster::Answers& answers,
                    Deadline deadline) const;
  void hear_lost(int rank, const std::string& why);
  void hear_left(int rank, const std::string& farewell);
  std::string answer(const std::string& question);
  // Empty if the question is not about a message.
  std::optional<std::string> answer_about_message(const std::string& question) const;
  // Returns the state of a rank that has not answered, in words.
  std::string state_of(int rank, const cluster::Answers& answers) const;
  // Empty if `first` does not wait for another rank, or if the chain of waiting ranks is a cycle.
  std::string end_of_waits(int first, const cluster::Answers& answers) const;
  // Whether the text reports that a group has failed alone. If so, records the failure.
  bool hear_of_failure(const std::string& words);
  void fail_alone(uint32_t id, const Error& cause, const std::string& why);
  // Call without locks held. Returns false if the group had failed before.
  bool mark_failed(uint32_t id, const Error& cause);
  void write(Enrolment group, const RankStatuses& known, const std::string& cause) const;
  void cut(const Error& cause, bool is_reported);
  void give_up(const Error& cause, const std::string& why);
  // Call with mutex_ held. Returns the reason why call `sequence` of that group can never end.
  std::optional<Error> absence(const Enrolment& group, int64_t sequence) const;
  void watch();
  void warn_of_stalls();
  void look_for_deadlock();

  const int world_rank_;
  RankNames names_;
  WakeFunctions wakes_;
  mutable std::mutex mutex_;  // guards all below, except as their classes say
  mutable std::condition_variable news_;
  WorldLoss loss_;
  FailedGroups failures_;
  GroupRegister groups_;
  DepartedRanks departed_;
  bool parted_ = false;  // leave() or fail() of the plane was called
  bool closing_ = false;
  bool recorded_ = false;  // the flight records were written
  std::unique_ptr<ControlPlane> plane_;
  CallWatch calls_;
  std::thread watch_;
};

}  // namespace troika::comm
