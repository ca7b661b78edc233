// Who of a world's ranks is gone, left or late: what lets a group name the cause instead of
// hanging.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/cluster/answers.h"
#include "troika/comm/deadlock.h"
#include "troika/comm/recorder.h"
#include "troika/layout/mesh.h"

namespace troika::comm {

// How the ranks of a world hear of each other outside of their messages. Its listener is called on
// threads of its own until leave() or fail() has returned.
class ControlPlane {
 public:
  struct Listener {
    std::function<void(int rank, const std::string& why)> lost;
    std::function<void(int rank, const std::string& farewell)> left;
    std::function<std::string(const std::string& question)> answer;
  };

  virtual ~ControlPlane() = default;
  virtual void listen(Listener listener) = 0;
  // This rank is lost on purpose, and the others are told why.
  virtual void fail(const std::string& why) = 0;
  virtual void leave(const std::string& farewell) = 0;
  // Does not throw; empty when this rank has parted.
  virtual cluster::Answers ask_all(const std::string& question, Deadline deadline) = 0;
};

// A group as the lifeline needs to know it. `ranks` are the world's ranks of its members.
struct Enrolment {
  uint32_t id = 0;
  uint32_t tag_space = 0;
  std::vector<int> ranks;
  std::shared_ptr<Recorder> recorder;
  Recorder::Owner owner;
  Milliseconds stall_warning{0};
  std::filesystem::path flight_record;
  bool fails_alone = false;
};

// Messages between processes only show that some connection broke, often to a rank that itself gave
// up over another one. The control plane knows which rank was lost first, within milliseconds, also
// where the transport would show nothing. One lifeline serves a world and every group split from
// it: a loss ends them all. A group that fails alone is marked by its tag space, which is then not
// used again. It warns of calls that stall, and writes flight records when the world
// is lost. All functions may be called from any thread.
class Lifeline {
 public:
  Lifeline(std::unique_ptr<ControlPlane> plane, int world_rank, int world_size);
  ~Lifeline();
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;

  int world_rank() const { return world_rank_; }

  // From now on ranks are named by their coordinates too, where the mesh has several axes.
  void place_ranks(const layout::Mesh& mesh);
  // The rank of the world in words: "rank 5", or "rank 5 = pipeline 1, data 0, tensor 1".
  std::string rank_name(int world_rank) const;
  // "pipeline 1, data 0, tensor 1"; empty where ranks have no coordinates.
  std::string place(int world_rank) const;

  // Called on another thread, or inside abandon(), when the world is lost and before the others
  // hear of it: to end waits under way. One for each owner; set to nothing, it is not called any
  // more. It must not call this function.
  void wake_with(const void* owner, std::function<void()> wake);

  bool is_cut() const { return cut_; }
  // Whether that is so, or the group of that tag space has failed alone.
  bool is_cut(uint32_t tag_space) const { return cut_ || failed_[tag_space]; }
  // Whether a group of that tag space fails alone.
  bool fails_alone(uint32_t tag_space) const { return alone_[tag_space]; }
  // Whether it was another rank that told of the loss.
  bool heard_of_loss() const { return heard_; }
  // The first loss, if there is one.
  std::optional<Error> cause() const;
  // That, or else the cause of the group of that tag space, which has failed alone.
  std::optional<Error> cause(uint32_t tag_space) const;
  // Throws the first loss: an Error that names the rank and why, of the kind that rank gave up
  // with.
  void require_live() const;
  // Throws cause(tag_space), if there is one.
  void require_live(uint32_t tag_space) const;
  // The same as require_live() after giving the news of a loss a moment to arrive: a broken
  // connection may be seen before it.
  void explain_broken_connection() const;
  // The back end has seen that the process of that rank has ended. Cuts this rank's lifeline; the
  // others see it themselves, or hear of it.
  void witness_death(int world_rank);
  // Whether that rank of the world has parted in peace.
  bool has_left(int world_rank) const;
  // This rank will not call again; the others are told. Only the first cause counts.
  void abandon(const Error& cause);
  // The same because the program of this rank failed, in whatever way.
  void abandon_for_program();
  // These for a group: where it fails alone, its members are told, and nobody else.
  void abandon_group(uint32_t id, const Error& cause);
  void abandon_group_for_program(uint32_t id);
  // Parts in peace, unless abandon() came before: to be called before the connections close. The
  // destructor does it as well.
  void leave();

  // Numbers for groups that are split off: one that no group of this rank has had, and the notice
  // that one was taken.
  int64_t next_id() const;
  void take_id(int64_t id);
  // The tag spaces of the groups this rank is in, and of those that have failed alone.
  static constexpr size_t kTagSpaces = 512;
  std::bitset<kTagSpaces> tag_spaces() const;
  void enrol(Enrolment group);
  void dismiss(uint32_t id);
  // Throws Error(peer) naming a member that left before it came to call `sequence`.
  void require_present(uint32_t id, int64_t sequence) const;
  // Who is missing in call `sequence`, in words: "rank 2 has not called it (last: ...)"; empty when
  // nobody is.
  std::string missing(uint32_t id, int64_t sequence, Deadline deadline);

  // Asks the other end of a message of group `id` about it. Returns its state in words, as "rank 1
  // has not sent it (last: ...)", or an empty string when the other end cannot be asked.
  std::string other_end(uint32_t id, const MessagePrint& message, Deadline deadline);

  // Writes the record of every group that has a folder for it, once, with the standings last known;
  // of a group that has failed alone, its record.
  void write_flight_records(const std::string& cause);
  void write_flight_record_of(uint32_t id, const std::string& cause);

 private:
  // Enough for news inside a cluster, and too little to be noticed by who waits for an error.
  static constexpr Milliseconds kNewsTime{1000};
  // The question for the account of a rank; others are about a message, or the number of a group.
  static constexpr const char* kAllGroups = "all";

  struct Departed {
    int rank;
    std::map<uint32_t, Standing> last;  // by group
  };

  // The members of a group: what each says of itself, or who is silent instead.
  struct Members {
    std::vector<int> ranks;
    Standings standings;
    std::vector<int> silent;
  };

  // The cause with its kind, as one text on the wire.
  static std::string with_kind(const Error& cause);
  Error loss_of(int rank, const std::string& why) const;
  Members ask_members(uint32_t id, Deadline deadline);
  void hear_lost(int rank, const std::string& why);
  void hear_left(int rank, const std::string& farewell);
  std::string answer(const std::string& question);
  // Nothing where the question is another one.
  std::optional<std::string> answer_about_message(const std::string& question) const;
  // Whether the words are the news that a group has failed alone, which is then taken in.
  bool hear_of_failure(const std::string& words);
  void fail_alone(uint32_t id, const Error& cause, const std::string& why);
  // Call without locks held. Whether the group had not failed before.
  bool mark_failed(uint32_t id, const Error& cause);
  void write(Enrolment group, const Standings& known, const std::string& cause) const;
  // This rank's account of all groups that it is in.
  Account account() const;
  std::string farewell() const;
  void cut(const Error& cause, bool heard);
  void give_up(const Error& cause, const std::string& why);
  // Call with mutex_ held: the reason why call `sequence` of that group can never end.
  std::optional<Error> absence(const Enrolment& group, int64_t sequence) const;
  std::optional<Standing> last_of(const Departed& departed, uint32_t id) const;
  void watch();
  void warn_of_stalls();
  void look_for_deadlock();

  const int world_rank_;
  const int world_size_;
  std::atomic<bool> cut_ = false;
  std::atomic<bool> heard_ = false;
  std::array<std::atomic<bool>, kTagSpaces> alone_ = {};   // by tag space
  std::array<std::atomic<bool>, kTagSpaces> failed_ = {};  // the same
  mutable std::mutex mesh_mutex_;  // guards mesh_; nothing is locked under it
  std::optional<layout::Mesh> mesh_;
  std::mutex wake_mutex_;                               // held while one of them runs
  std::map<const void*, std::function<void()>> wakes_;  // by owner
  mutable std::mutex mutex_;                            // guards all below
  mutable std::condition_variable news_;
  std::optional<Error> cause_;
  bool parted_ = false;  // told the others farewell or why not
  bool closing_ = false;
  std::map<uint32_t, Enrolment> groups_;
  std::deque<std::pair<uint32_t, Standing>> dismissed_;  // the latest groups, by when they went
  std::vector<Departed> departed_;
  std::map<uint32_t, Standings> known_;
  std::map<uint32_t, int64_t> warned_;  // of which call, by group
  bool recorded_ = false;
  std::map<uint32_t, Error> failures_;  // of groups that failed alone, by tag space
  // A failure of a group that this rank is not in yet, and may never be.
  struct EarlyFailure {
    uint32_t id;
    int first;
    Error cause;
  };
  std::deque<EarlyFailure> early_failures_;
  int64_t last_id_ = 0;
  std::unique_ptr<ControlPlane> plane_;
  DeadlockWatch deadlock_watch_;  // of watch_
  std::thread watch_;
};

}  // namespace troika::comm
