// The state that the handles of a group share: the order of calls, the thread that runs
// asynchronous calls, and the first failure.
#pragma once

#include <c10/core/Event.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "troika/comm/algorithms/collective.h"
#include "troika/comm/first_failure.h"
#include "troika/comm/group.h"

namespace troika::comm {

struct Work::State {
  virtual ~State() = default;
  // Completes a message. Called once, by the first thread that waits, if `has_rest`.
  virtual void run_rest(Deadline) {}
  // Whether run_rest() is the only remaining part of a message and would return at once: true for a
  // sent message whose tensor may be changed again. Called with `mutex` held, if `has_rest`.
  virtual bool is_over() { return false; }

  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr failure;
  bool has_rest = false;
  std::optional<Times> times = {};  // of a finished collective
  // Marks the end of a collective on its device, which comes after the end on the host. Set when
  // `done`.
  std::optional<c10::Event> on_device = {};

  void finish(std::exception_ptr with, std::optional<Times> when = {},
              std::optional<c10::Event> end_on_device = {});
};

inline bool never_over() {
  return false;
}

// Work that runs `body` when it is first waited for, and then destroys `body`. `over` is
// State::is_over() until then.
template <typename Body, typename Over = bool (*)()>
std::shared_ptr<Work::State> make_rest(Body body, Over over = never_over) {
  struct Rest : Work::State {
    Rest(Body&& own, Over&& own_over) : body(std::move(own)), over(std::move(own_over)) {
      has_rest = true;
    }
    void run_rest(Deadline deadline) override {
      over.reset();
      const Body own = *std::exchange(body, std::nullopt);
      own(deadline);
    }
    bool is_over() override { return (*over)(); }
    std::optional<Body> body;
    std::optional<Over> over;
  };
  return std::make_shared<Rest>(std::move(body), std::move(over));
}

// A call with the caller's tensors. They are packed when the call starts.
struct CallRequest {
  Call call;
  at::Tensor input;
  at::Tensor output;
  // Whether the operation reads `output`, and whether it writes its result there.
  bool reads_output = false;
  bool writes_output = true;
  // Marks the work that the caller's stream had queued when the call was made. Empty for tensors on
  // the host.
  std::optional<c10::Event> ready = {};
};

class Group::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(std::shared_ptr<GroupImpl> impl, const GroupOptions& options);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // With `async`, queues the request for the group's thread and returns its state. Otherwise blocks
  // until the request is done and returns null; the request runs on this thread, or on the group's
  // thread if earlier requests are not done yet. `async` has no effect in a group of one rank, or
  // if only the thread that made the group may call the back end.
  std::shared_ptr<Work::State> submit(CallRequest&& request, bool async);
  // Returns the fingerprint of a message before its tensor is known; peer kAnyRank means any rank.
  // Throws Error(usage) if the peer does not exist or the tag is too large.
  MessageFingerprint make_fingerprint(Direction direction, int peer, int tag, int largest_tag,
                                      std::string_view label,
                                      const std::source_location& site) const;
  static MessageFingerprint make_fingerprint_for_any(Direction direction, int tag, int largest_tag,
                                                     std::string_view label,
                                                     const std::source_location& site);
  std::shared_ptr<Work::State> send(const at::Tensor& tensor, int peer,
                                    MessageFingerprint fingerprint);
  std::shared_ptr<Work::State> receive(const at::Tensor& tensor, int peer,
                                       MessageFingerprint fingerprint);
  int receive_any(const at::Tensor& tensor, int tag, std::string_view label,
                  const std::source_location& site);
  std::shared_ptr<Work::State> batch(const std::vector<PointToPoint>& messages,
                                     std::string_view label, const std::source_location& site);

  GroupImpl& impl() const { return *impl_; }
  const std::shared_ptr<GroupImpl>& shared_impl() const { return impl_; }
  const GroupOptions& options() const { return options_; }
  MessageCollectives& collectives() { return collectives_; }
  uint64_t bytes_of_messages() const { return bytes_of_messages_; }
  Deadline deadline() const { return Deadline::after(options_.timeout); }
  // Runs `body`, which communicates outside of collectives. If it throws, the group fails.
  void guarded(c10::function_ref<void()> body);
  // The same for a part of a message, which errors then name.
  void guarded(const MessageFingerprint& fingerprint, c10::function_ref<void()> body);
  Recorder& recorder() const { return *recorder_; }
  // Runs `body`, which waits for message `id` of the log. If it throws, the group fails, and the
  // error describes the state of the message's other end.
  void await_message(int64_t id, const MessageFingerprint& fingerprint, Deadline until,
                     c10::function_ref<void(Deadline)> body);

  // One end of an edge (edge.h).
  struct Edge {
    explicit Edge(MessageFingerprint fingerprint) : fingerprint(std::move(fingerprint)) {}
    virtual ~Edge() = default;
    // Waits until everything sent has been received.
    virtual void finish(Deadline) {}

    const MessageFingerprint fingerprint;  // without a tensor
  };
  // Keeps the end as long as the group. Throws Error(usage) if this end exists already.
  void keep_edge(std::shared_ptr<Edge> edge);

 private:
  struct Message;  // in flight
  // Messages and edges, which live as long as their transfers, even if their Work was dropped.
  // keep() and release() may be called from any thread.
  class KeptTransfers {
   public:
    void keep(const std::shared_ptr<Message>& message);
    void release(const std::shared_ptr<Message>& message);
    // Returns false if this end of the edge exists already.
    bool keep(std::shared_ptr<Edge> edge);
    // Waits for each sent message and each edge, each at most `timeout`.
    void finish(Milliseconds timeout);

   private:
    std::mutex mutex_;
    std::vector<std::shared_ptr<Message>> messages_;
    std::vector<std::shared_ptr<Edge>> edges_;
  };
  struct Queued {
    CallRequest request;
    std::shared_ptr<Work::State> state;
  };
  // A call that has ended on the host and still runs on a device.
  struct OnDevice {
    CollectiveFingerprint fingerprint;
    Deadline deadline;
    std::unique_ptr<DeviceWork> work;
  };
  // The calls of this rank, in their order.
  struct Calls {
    int64_t next_sequence = 0;
    std::deque<Queued> queue;
    std::vector<OnDevice> on_device;
    bool busy = false;  // a thread is running a call
    bool closing = false;
  };

  std::shared_ptr<Work::State> run_or_queue(CallRequest&& request, bool async);
  void run_queue();
  void run(CallRequest& request);
  std::optional<c10::Event> run_beside(CallRequest& request);
  // Ends the record of a call, at once or, if the back end has queued it on a device, when the
  // group's thread sees that the device has finished it.
  void end_or_watch(const CollectiveFingerprint& fingerprint, Deadline deadline);
  // Looks at the calls that run on a device, unlocks meanwhile, and fails the group if one of them
  // has failed or is late. For the group's thread.
  void look_at_device(std::unique_lock<std::mutex>& lock);
  void start_thread();  // with mutex_ held
  // Returns true if the message was sent completely; false if nothing was sent.
  bool send_at_once(MessageFingerprint& fingerprint, int peer, const at::Tensor& data);
  std::shared_ptr<Message> begin_message(MessageFingerprint fingerprint, int peer, at::Tensor data);
  // Waits for the head and the payload of an incoming message, and checks the head.
  void take(Message& message, Deadline deadline);
  // Runs before the group is destroyed. Also waits for messages whose Work was dropped.
  void wait_for_sent();
  void carry_out(Call& call, Deadline deadline);
  // The time for asking which rank is missing, after a timeout. Errors are due within one second of
  // the timeout; the rest of that second is for notifying the other ranks.
  static constexpr Milliseconds kAskTime{500};
  // Returns the error for `what`, a call or a message that was waited for during `waited`. After a
  // timeout, `who` is called to say in words who is missing.
  Error explained(const Error& error, const std::string& what, Milliseconds waited,
                  const std::function<std::string(Deadline)>& who) const;
  void refuse_other_thread() const;
  void refuse_unusable() const;  // also after a failure
  void fail(const std::exception_ptr& failure);

  const std::shared_ptr<GroupImpl> impl_;
  const GroupOptions options_;
  const std::thread::id maker_ = std::this_thread::get_id();
  const std::shared_ptr<Recorder> recorder_;
  MessageCollectives collectives_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Calls calls_;  // guarded by mutex_
  KeptTransfers transfers_;
  std::atomic<uint64_t> bytes_of_messages_ = 0;
  FirstFailure failure_;
  std::atomic<int> next_of_any_ = 0;  // the rank that receive_any() checks first
  std::thread thread_;                // started by the first call that needs it
};

}  // namespace troika::comm
