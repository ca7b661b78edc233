#include "troika/comm/mpi/mpi_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "troika/base/error.h"
#include "troika/comm/mpi/progress.h"

namespace troika::comm::mpi {

namespace {

// The counts of MPI are ints.
constexpr size_t kPieceBytes = size_t{1} << 30;
// How long a message of a rank that has left may still be in flight.
constexpr Milliseconds kOnItsWay{1000};
// The time for transfers that cannot be cancelled to end, for all transfers of a group together.
constexpr Milliseconds kCancelTime{50};
// How often a wait polls MPI before it yields between polls. The second value is for more ranks
// than processors, where another rank must run before a message can arrive.
constexpr int kPolls = 1000;
constexpr int kCrowdedPolls = 20;

}  // namespace

std::atomic<bool> gave_up{false};

void check(int code, int peer) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error("comm", ErrorKind::peer,
              {.what = fmt::format("MPI failed talking to rank {}", peer), .got = text});
}

void finish(MPI_Request request, Deadline deadline, const Lifeline* lifeline) {
  for (int done = 0; !done;) {
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), 0);
    if (lifeline) lifeline->require_live();
    if (!done && deadline.passed()) {
      throw Error("comm", ErrorKind::timeout, {.what = "not all ranks joined MPI in time"});
    }
    std::this_thread::yield();
  }
}

namespace {

class MpiGroup : public GroupImpl {
 public:
  // Works on a duplicate, so its messages never match those of the rest of the program.
  MpiGroup(GroupInfo info, std::shared_ptr<Lifeline> lifeline, MPI_Comm parent, bool is_crowded,
           Deadline deadline)
      : GroupImpl(std::move(info), std::move(lifeline)),
        polls_(is_crowded ? kCrowdedPolls : kPolls) {
    MPI_Request duplicated;
    check(MPI_Comm_idup(parent, &comm_, &duplicated), 0);
    finish(duplicated, deadline, this->lifeline().get());
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    if (!this->info().any_thread) return;
    progress_.emplace([this] { return under_way_ > 0 && !this->lifeline()->is_cut(); },
                      [this] { return drive_beside(); });
  }
  ~MpiGroup() override {
    progress_.reset();
    lifeline()->leave();
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (lifeline()->is_cut()) {
      gave_up = true;
    } else if (!finalized) {
      MPI_Comm_free(&comm_);
    }
  }

  std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    return start(peer, bytes, [&](size_t at, int count, MPI_Request* request) {
      return MPI_Isend(static_cast<const char*>(data) + at, count, MPI_BYTE, peer,
                       static_cast<int>(tag), comm_, request);
    });
  }
  std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    if (is_message(tag)) {
      return std::make_unique<ProbedReceive>(*this, peer, static_cast<int>(tag), data, bytes);
    }
    return start(peer, bytes, [&](size_t at, int count, MPI_Request* request) {
      return MPI_Irecv(static_cast<char*>(data) + at, count, MPI_BYTE, peer, static_cast<int>(tag),
                       comm_, request);
    });
  }

  std::unique_ptr<Transfer> send_until_received(int peer, uint32_t tag, const void* data,
                                                size_t bytes) override {
    return start(peer, bytes, [&](size_t at, int count, MPI_Request* request) {
      return MPI_Issend(static_cast<const char*>(data) + at, count, MPI_BYTE, peer,
                        static_cast<int>(tag), comm_, request);
    });
  }

  int await_any(uint32_t tag, int, Deadline deadline) override {
    const Progress::Relief relief(progress());
    for (int polls = 0;; ++polls) {
      post_what_has_come();
      int has_come = 0;
      MPI_Status status;
      check(MPI_Iprobe(MPI_ANY_SOURCE, static_cast<int>(tag), comm_, &has_come, &status), rank());
      if (has_come) return status.MPI_SOURCE;
      lifeline()->require_live();
      if (deadline.passed() || (polls % 1024 == 0 && others_have_left())) fail_for_any(tag);
      if (polls > polls_) std::this_thread::yield();
    }
  }

  // MPI progresses messages only inside its calls.
  bool drive() override {
    const bool may_call = info().any_thread || std::this_thread::get_id() == maker_;
    if (under_way_ == 0 || !may_call) return false;
    post_what_has_come();
    int has_come = 0;
    MPI_Status status;
    check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &has_come, &status), rank());
    return true;
  }

 private:
  class MpiTransfer : public Transfer {
   public:
    MpiTransfer(MpiGroup& group, int peer, std::vector<MPI_Request> requests)
        : group_(group), peer_(peer), requests_(std::move(requests)) {
      ++group_.under_way_;
      if (auto* progress = group_.progress()) progress->begun();
    }
    ~MpiTransfer() override {
      cancel();
      --group_.under_way_;
    }
    MpiTransfer(const MpiTransfer&) = delete;
    MpiTransfer& operator=(const MpiTransfer&) = delete;

    void wait(Deadline deadline) override {
      const Progress::Relief relief(group_.progress());
      for (int polls = 0;; ++polls) {
        if (done()) return;
        group_.lifeline()->require_live();
        if (polls % 1024 == 0 && group_.has_left_without_it(peer_)) {
          throw Error("comm", ErrorKind::peer,
                      {.what = fmt::format("{} has left", group_.rank_name(peer_))});
        }
        if (deadline.passed()) {
          throw Error("comm", ErrorKind::timeout,
                      {.what = fmt::format("no message from {} in time", group_.rank_name(peer_))});
        }
        if (polls > group_.polls_) std::this_thread::yield();
      }
    }

    bool done() override {
      group_.post_what_has_come();
      const std::lock_guard lock(mutex_);
      return is_complete();
    }

   protected:
    // After a failed wait, MPI must not write into buffers that are about to be destroyed.
    void cancel() {
      for (auto& request : requests_) {
        if (request == MPI_REQUEST_NULL) continue;
        const auto deadline = group_.cancel_deadline();
        MPI_Cancel(&request);
        // A transfer in flight that cannot be cancelled gets a moment to end.
        int done = 0;
        do {
          if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) break;
        } while (!done && !deadline.passed());
      }
      requests_.clear();
    }

    // Call with mutex_ held.
    virtual bool is_complete() {
      int done = 0;
      check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done,
                        MPI_STATUSES_IGNORE),
            peer_);
      return done;
    }

    MpiGroup& group_;
    const int peer_;
    std::mutex mutex_;  // one thread may wait while another calls done()
    std::vector<MPI_Request> requests_;
  };

  // Checks the length of a message before posting its receive: Open MPI 4 writes past the end of a
  // buffer that is shorter than the message.
  class ProbedReceive : public MpiTransfer {
   public:
    ProbedReceive(MpiGroup& group, int peer, int tag, void* data, size_t bytes)
        : MpiTransfer(group, peer, {}), tag_(tag), data_(static_cast<char*>(data)), left_(bytes) {
      group_.enlist(*this);
    }
    ~ProbedReceive() override {
      group_.strike(*this);
      cancel();
    }

    void wait(Deadline deadline) override {
      MpiTransfer::wait(deadline);
      TROIKA_CHECK(!refused_, "a message is longer than its receive");
    }

    // Posts the receives of the pieces that have arrived; returns whether all pieces are posted.
    bool post_what_has_come() {
      const std::lock_guard lock(mutex_);
      while (!posted_) {
        int has_come = 0;
        MPI_Status status;
        check(MPI_Iprobe(peer_, tag_, group_.comm_, &has_come, &status), peer_);
        if (!has_come) return false;
        int length = 0;
        MPI_Get_count(&status, MPI_BYTE, &length);
        const size_t piece = std::min(kPieceBytes, left_);
        char* into = data_;
        if (static_cast<size_t>(length) > piece) {
          // Received into a buffer that nobody reads, so that it does not match the next receive.
          refused_ = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(length));
          into = refused_.get();
        }
        MPI_Request request = MPI_REQUEST_NULL;
        check(MPI_Irecv(into, length, MPI_BYTE, peer_, tag_, group_.comm_, &request), peer_);
        requests_.push_back(request);
        data_ += piece;
        left_ -= piece;
        posted_ = refused_ || left_ == 0;
      }
      return true;
    }
    std::pair<int, int> stream() const { return {peer_, tag_}; }

   private:
    bool is_complete() override { return posted_ && MpiTransfer::is_complete(); }

    const int tag_;
    char* data_;
    size_t left_;  // bytes for which no receive is posted yet
    bool posted_ = false;
    std::unique_ptr<char[]> refused_;
  };

  void enlist(ProbedReceive& receive) {
    const std::lock_guard lock(probed_mutex_);
    probed_[receive.stream()].push_back(&receive);
    ++unposted_;
  }
  void strike(ProbedReceive& receive) {
    const std::lock_guard lock(probed_mutex_);
    const auto stream = probed_.find(receive.stream());
    if (stream != probed_.end() && std::erase(stream->second, &receive) > 0) --unposted_;
  }
  // Called in every wait, so that all receives make progress.
  void post_what_has_come() {
    if (unposted_ == 0) return;
    const std::lock_guard lock(probed_mutex_);
    for (auto stream = probed_.begin(); stream != probed_.end();) {
      auto& receives = stream->second;
      while (!receives.empty() && receives.front()->post_what_has_come()) {
        receives.pop_front();
        --unposted_;
      }
      stream = receives.empty() ? probed_.erase(stream) : std::next(stream);
    }
  }

  Progress* progress() { return progress_ ? &*progress_ : nullptr; }
  // Runs on the thread of `progress_`. Returns whether a message has arrived.
  bool drive_beside() {
    // If MPI copies a message in parts, each probe moves one part.
    constexpr int kLooks = 16;
    bool moved = false;
    try {
      for (int i = 0; i < kLooks; ++i) {
        const int unposted = unposted_;
        post_what_has_come();
        int has_come = 0;
        MPI_Status status;
        check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &has_come, &status), rank());
        moved = moved || unposted_ < unposted;
      }
    } catch (const Error&) {
      // The error is reported to the thread that waits for a message.
    }
    return moved;
  }

  template <typename Start>
  std::unique_ptr<Transfer> start(int peer, size_t bytes, Start&& post) {
    std::vector<MPI_Request> requests;
    size_t at = 0;
    do {
      const size_t piece = std::min(kPieceBytes, bytes - at);
      check(post(at, static_cast<int>(piece), &requests.emplace_back()), peer);
      at += piece;
    } while (at < bytes);
    return std::make_unique<MpiTransfer>(*this, peer, std::move(requests));
  }

  // One deadline for transfers that are cancelled one after another, e.g. when a collective fails.
  Deadline cancel_deadline() const {
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    if (!cancelling_ || now - cancelling_->at() > 10 * kCancelTime) {
      cancelling_ = Deadline::after(kCancelTime);
    }
    return *cancelling_;
  }

  // A message of a rank that has left is here already or arrives within a moment.
  bool has_left_without_it(int peer) const {
    const int world_rank = info().world_ranks[static_cast<size_t>(peer)];
    if (!lifeline()->has_left(world_rank)) return false;
    const std::lock_guard lock(mutex_);
    const auto noticed = left_.try_emplace(peer, Deadline::after(kOnItsWay)).first;
    return noticed->second.passed();
  }

  const std::thread::id maker_ = std::this_thread::get_id();
  const int polls_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::atomic<int> under_way_ = 0;  // transfers that exist
  std::mutex probed_mutex_;         // guards probed_; locked before a receive's mutex
  // Receives that are not posted yet, by peer and tag, in order.
  std::map<std::pair<int, int>, std::deque<ProbedReceive*>> probed_;
  std::atomic<int> unposted_ = 0;  // the number of these receives
  mutable std::mutex mutex_;       // guards the members below, except progress_
  mutable std::map<int, Deadline> left_;
  mutable std::optional<Deadline> cancelling_;
  std::optional<Progress> progress_;  // exists if any thread may call MPI; destroyed before
                                      // everything it uses
};

}  // namespace

std::shared_ptr<GroupImpl> make_group(GroupInfo info, std::shared_ptr<Lifeline> lifeline,
                                      MPI_Comm comm, bool is_crowded, Deadline deadline) {
  return std::make_shared<MpiGroup>(std::move(info), std::move(lifeline), comm, is_crowded,
                                    deadline);
}

}  // namespace troika::comm::mpi
