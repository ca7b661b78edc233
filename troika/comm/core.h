// The state that the handles of a group share: the order of its calls, the thread that carries out
// those that run beside the caller, and the first failure.
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
#include "troika/comm/group.h"

namespace troika::comm {

struct Work::State {
  virtual ~State() = default;
  // The rest of a message's work. Called once, by the first thread that waits, where `has_rest`.
  virtual void run_rest(Deadline) {}

  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr failure;
  bool has_rest = false;
  std::optional<Times> times = {};  // of a collective that has ended
  // Marks the end of a collective on its device, which follows the host's end. Set once done.
  std::optional<c10::Event> on_device = {};

  void finish(std::exception_ptr with, std::optional<Times> when = {},
              std::optional<c10::Event> end_on_device = {});
};

// Work whose rest is `body`, which goes once it has run.
template <typename Body>
std::shared_ptr<Work::State> make_rest(Body body) {
  struct Rest : Work::State {
    explicit Rest(Body&& own) : body(std::move(own)) { has_rest = true; }
    void run_rest(Deadline deadline) override {
      const Body own = *std::exchange(body, std::nullopt);
      own(deadline);
    }
    std::optional<Body> body;
  };
  return std::make_shared<Rest>(std::move(body));
}

// A call with the caller's tensors, which are packed when its turn comes.
struct Job {
  Call call;
  at::Tensor input;
  at::Tensor output;
  // Whether the operation reads what is in `output`, and whether its result belongs there.
  bool reads_output = false;
  bool writes_output = true;
  // Marks the work that the caller's stream had queued when the call was made; none for tensors of
  // the host.
  std::optional<c10::Event> ready = {};
};

class Group::Core : public std::enable_shared_from_this<Core> {
 public:
  Core(std::shared_ptr<GroupImpl> impl, const GroupOptions& options);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Carries the job out on this thread once those before it are done; or, for `async`, queues it
  // for the group's thread. Nothing is returned for what is done.
  std::shared_ptr<Work::State> submit(Job&& job, bool async);
  // The print of a message before its tensor is known; peer kAnyRank is any. Throws Error(usage)
  // for a peer that is not there and a tag that is too large.
  MessagePrint make_print(Direction direction, int peer, int tag, int largest_tag,
                          std::string_view label, const std::source_location& site) const;
  static MessagePrint make_print_for_any(Direction direction, int tag, int largest_tag,
                                         std::string_view label, const std::source_location& site);
  std::shared_ptr<Work::State> send(const at::Tensor& tensor, int peer, MessagePrint print);
  std::shared_ptr<Work::State> receive(const at::Tensor& tensor, int peer, MessagePrint print);
  int receive_any(const at::Tensor& tensor, int tag, std::string_view label,
                  const std::source_location& site);
  std::shared_ptr<Work::State> batch(const std::vector<PointToPoint>& messages,
                                     std::string_view label, const std::source_location& site);

  GroupImpl& impl() const { return *impl_; }
  const std::shared_ptr<GroupImpl>& shared_impl() const { return impl_; }
  const GroupOptions& options() const { return options_; }
  MessageCollectives& collectives() { return collectives_; }
  Deadline deadline() const { return Deadline::after(options_.timeout); }
  // Runs what speaks to other ranks outside of collectives; a failure is the group's.
  void guarded(c10::function_ref<void()> body);
  Recorder& recorder() const { return *recorder_; }
  // Runs `body`, which waits for message `id` of the log; its failure is the group's and names the
  // other end.
  void await_message(int64_t id, const MessagePrint& print, Deadline until,
                     c10::function_ref<void(Deadline)> body);

  // One end of an edge.
  struct Edge {
    explicit Edge(MessagePrint print) : print(std::move(print)) {}
    virtual ~Edge() = default;
    // Waits for all that was sent.
    virtual void finish(Deadline) {}

    const MessagePrint print;  // without a tensor
  };
  // Keeps it as long as the group. Throws Error(usage) where there is this end already.
  void keep_edge(std::shared_ptr<Edge> edge);

 private:
  struct Message;  // under way
  struct Queued {
    Job job;
    std::shared_ptr<Work::State> state;
  };

  std::shared_ptr<Work::State> run_or_queue(Job&& job, bool async);
  void run_queue();
  void run(Job& job);
  std::optional<c10::Event> run_beside(Job& job);
  // Whether the message is on its way for good.
  bool send_at_once(MessagePrint& print, int peer, const at::Tensor& data);
  std::shared_ptr<Message> begin_message(MessagePrint print, int peer, at::Tensor data);
  // Waits for the head and the payload of a message that arrives, and checks the head.
  void take(Message& message, Deadline deadline);
  // Before the group goes, also for messages for which nobody waits.
  void wait_for_sent();
  // Messages live as long as their transfers, also when their Work was dropped.
  void keep(const std::shared_ptr<Message>& message);
  void release(const std::shared_ptr<Message>& message);
  void carry_out(Call& call, Deadline deadline);
  // For the last questions about who is missing, within the second after a time-out; the rest is
  // for telling the others.
  static constexpr Milliseconds kAskTime{500};
  // The error of a call or a message, `what`, that was waited for so long. After a time-out `who`
  // is called: who is missing, in words.
  Error explained(const Error& error, const std::string& what, Milliseconds waited,
                  const std::function<std::string(Deadline)>& who) const;
  void refuse_if_failed() const;  // call with mutex_ held, or where has_failed_
  void refuse_other_thread() const;
  void refuse_unusable() const;  // both
  void fail(const std::exception_ptr& failure);

  const std::shared_ptr<GroupImpl> impl_;
  const GroupOptions options_;
  const std::thread::id maker_ = std::this_thread::get_id();
  const std::shared_ptr<Recorder> recorder_;
  MessageCollectives collectives_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Queued> queue_;
  int64_t next_sequence_ = 0;
  bool busy_ = false;  // some thread is carrying out a call
  bool closing_ = false;
  std::vector<std::shared_ptr<Message>> messages_;
  std::vector<std::shared_ptr<Edge>> edges_;
  std::atomic<int> next_of_any_ = 0;      // the rank whose turn it is in receive_any()
  std::optional<Error> cause_;            // the first failure
  std::atomic<bool> has_failed_ = false;  // there is a cause_, which then stays
  std::thread thread_;                    // started with the first asynchronous call
};

}  // namespace troika::comm
