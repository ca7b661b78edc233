#include "troika/comm/local/local.h"

#include <fmt/format.h>

#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "troika/base/error.h"
#include "troika/comm/diagnostics/lifeline.h"
#include "troika/comm/messages/group_impl.h"

namespace troika::comm::local {

namespace {

using Message = std::vector<char>;

// The mailboxes between all pairs of ranks.
class Hub {
 public:
  explicit Hub(int size) : size(size), listeners_(static_cast<size_t>(size)) {}

  const int size;

  // Stores a message and returns its number.
  uint64_t put(int from, int to, uint32_t tag, Message message) {
    const std::lock_guard lock(mutex_);
    auto& box = boxes_[{from, to, tag}];
    box.messages[box.sent] = std::move(message);
    changed_.notify_all();
    return box.sent++;
  }

  // Returns the number of the message that a receive started now will get.
  uint64_t expect(int from, int to, uint32_t tag) {
    const std::lock_guard lock(mutex_);
    return boxes_[{from, to, tag}].expected++;
  }
  // Cancels the latest receive.
  void forget(int from, int to, uint32_t tag, uint64_t number) {
    const std::lock_guard lock(mutex_);
    auto& expected = boxes_[{from, to, tag}].expected;
    if (expected == number + 1) --expected;
  }

  Message take(int from, int to, uint32_t tag, uint64_t number, Deadline deadline,
               const Lifeline& lifeline) {
    std::unique_lock lock(mutex_);
    auto& messages = boxes_[{from, to, tag}].messages;
    const auto hopeless = [&] {
      return lifeline.is_cut(tag_space_of(tag)) || lifeline.has_left(from);
    };
    changed_.wait_until(lock, deadline.at(),
                        [&] { return messages.contains(number) || hopeless(); });
    // A message that arrived before a loss is still valid.
    if (auto message = messages.extract(number)) {
      changed_.notify_all();
      return std::move(message.mapped());
    }
    lifeline.require_live(tag_space_of(tag));
    if (lifeline.has_left(from)) {
      throw Error("comm", ErrorKind::peer,
                  {.what = fmt::format("{} has left", lifeline.rank_name(from))});
    }
    throw Error("comm", ErrorKind::timeout,
                {.what = fmt::format("no message from {} in time", lifeline.rank_name(from))});
  }

  // Returns the rank that has sent `to` a message with this tag for which no receive was started.
  std::optional<int> await_any(int to, uint32_t tag, int first, Deadline deadline,
                               const std::function<bool()>& hopeless) {
    std::unique_lock lock(mutex_);
    std::optional<int> from;
    changed_.wait_until(lock, deadline.at(), [&] {
      for (int i = 0; i < size && !from; ++i) {
        const int rank = (first + i) % size;
        const auto box = boxes_.find({rank, to, tag});
        if (box != boxes_.end() && box->second.messages.contains(box->second.expected)) from = rank;
      }
      return from || hopeless();
    });
    return from;
  }

  bool is_taken(int from, int to, uint32_t tag, uint64_t number) {
    const std::lock_guard lock(mutex_);
    return !boxes_[{from, to, tag}].messages.contains(number);
  }
  void await_taken(int from, int to, uint32_t tag, uint64_t number, Deadline deadline,
                   const Lifeline& lifeline) {
    std::unique_lock lock(mutex_);
    const auto& messages = boxes_[{from, to, tag}].messages;
    const auto hopeless = [&] {
      return lifeline.is_cut(tag_space_of(tag)) || lifeline.has_left(to);
    };
    changed_.wait_until(lock, deadline.at(),
                        [&] { return !messages.contains(number) || hopeless(); });
    if (!messages.contains(number)) return;
    lifeline.require_live(tag_space_of(tag));
    const auto name = lifeline.rank_name(to);
    if (lifeline.has_left(to)) throw Error("comm", ErrorKind::peer, {.what = name + " has left"});
    throw Error("comm", ErrorKind::timeout, {.what = name + " did not receive a message in time"});
  }

  void wake() {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  // The control plane. Listeners are called with its mutex held, so that none is called after it
  // has been removed.
  void listen(int rank, ControlPlane::Listener listener) {
    const std::lock_guard lock(plane_mutex_);
    listeners_[static_cast<size_t>(rank)] = std::move(listener);
  }
  template <typename Tell>
  void part(int rank, Tell&& tell) {
    const std::lock_guard lock(plane_mutex_);
    auto& own = listeners_[static_cast<size_t>(rank)];
    if (!own) return;
    own.reset();
    for (const auto& listener : listeners_) {
      if (listener) tell(*listener);
    }
    wake();
  }
  cluster::Answers ask_all(const std::string& question) const {
    const std::lock_guard lock(plane_mutex_);
    cluster::Answers answers;
    for (const auto& listener : listeners_) {
      answers.silent.push_back(static_cast<int>(answers.text.size()));
      answers.text.push_back(listener ? std::optional(listener->answer(question)) : std::nullopt);
    }
    return answers;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  struct Box {
    std::map<uint64_t, Message> messages;  // by sequence number
    uint64_t sent = 0;
    uint64_t expected = 0;
  };
  std::map<std::tuple<int, int, uint32_t>, Box> boxes_;
  mutable std::mutex plane_mutex_;
  std::vector<std::optional<ControlPlane::Listener>> listeners_;
};

class LocalPlane : public ControlPlane {
 public:
  LocalPlane(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  void listen(Listener listener) override { hub_->listen(rank_, std::move(listener)); }
  void fail(const std::string& why) override {
    hub_->part(rank_, [&](const Listener& other) { other.lost(rank_, why); });
  }
  void leave(const std::string& farewell) override {
    hub_->part(rank_, [&](const Listener& other) { other.left(rank_, farewell); });
  }
  cluster::Answers ask_all(const std::string& question, Deadline) override {
    return hub_->ask_all(question);
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const int rank_;
};

class LocalGroup : public GroupImpl {
 public:
  LocalGroup(const std::shared_ptr<Hub>& hub, const GroupInfo& info)
      : GroupImpl(info, std::make_shared<Lifeline>(std::make_unique<LocalPlane>(hub, info.rank),
                                                   info.rank)),
        hub_(hub) {
    lifeline()->wake_with(this, [hub] { hub->wake(); });
  }

  std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    const auto* begin = static_cast<const char*>(data);
    hub_->put(rank(), peer, tag, Message(begin, begin + bytes));
    return std::make_unique<CompletedSend>();
  }
  std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    return std::make_unique<Arriving>(*this, peer, tag, data, bytes);
  }
  std::unique_ptr<Transfer> send_until_received(int peer, uint32_t tag, const void* data,
                                                size_t bytes) override {
    const auto* begin = static_cast<const char*>(data);
    return std::make_unique<Leaving>(*this, peer, tag,
                                     hub_->put(rank(), peer, tag, Message(begin, begin + bytes)));
  }
  int await_any(uint32_t tag, int first, Deadline deadline) override {
    const auto from = hub_->await_any(rank(), tag, first, deadline, [this, tag] {
      return lifeline()->is_cut(tag_space_of(tag)) || others_have_left();
    });
    if (!from) fail_for_any(tag);
    return *from;
  }

 private:
  class Leaving : public Transfer {
   public:
    Leaving(const LocalGroup& group, int to, uint32_t tag, uint64_t number)
        : group_(group), to_(to), tag_(tag), number_(number) {}

    void wait(Deadline deadline) override {
      group_.hub_->await_taken(group_.rank(), to_, tag_, number_, deadline, *group_.lifeline());
    }
    bool done() override { return group_.hub_->is_taken(group_.rank(), to_, tag_, number_); }
    bool has_copied() override { return true; }

   private:
    const LocalGroup& group_;
    const int to_;
    const uint32_t tag_;
    const uint64_t number_;
  };

  class Arriving : public Transfer {
   public:
    Arriving(const LocalGroup& group, int from, uint32_t tag, void* data, size_t bytes)
        : group_(group),
          from_(from),
          tag_(tag),
          number_(group.hub_->expect(from, group.rank(), tag)),
          data_(data),
          bytes_(bytes) {}
    ~Arriving() override {
      if (!taken_) group_.hub_->forget(from_, group_.rank(), tag_, number_);
    }
    Arriving(const Arriving&) = delete;
    Arriving& operator=(const Arriving&) = delete;

    void wait(Deadline deadline) override {
      const Message message =
          group_.hub_->take(from_, group_.rank(), tag_, number_, deadline, *group_.lifeline());
      taken_ = true;
      TROIKA_CHECK(message.size() <= bytes_, "a message is longer than its receive");
      if (!message.empty()) std::memcpy(data_, message.data(), message.size());
    }

   private:
    const LocalGroup& group_;
    const int from_;
    const uint32_t tag_;
    const uint64_t number_;
    void* const data_;
    const size_t bytes_;
    bool taken_ = false;
  };

  const std::shared_ptr<Hub> hub_;
};

}  // namespace

std::vector<std::shared_ptr<GroupImpl>> make(int size, const std::vector<int>& nodes) {
  TROIKA_CHECK(size >= 1, "a group has at least one rank");
  const auto hub = std::make_shared<Hub>(size);
  std::vector<std::shared_ptr<GroupImpl>> ranks;
  for (int r = 0; r < size; ++r) {
    GroupInfo info = world_on_one_node("local", r, size);
    if (!nodes.empty()) info.nodes = nodes;
    info.receives_any = true;
    info.can_fail_alone = true;
    ranks.push_back(std::make_shared<LocalGroup>(hub, std::move(info)));
  }
  return ranks;
}

Group alone(const GroupOptions& options) {
  return Group(make(1).front(), options);
}

void run(int size, const std::function<void(Group)>& body, const GroupOptions& options) {
  run_ranks(make(size), body, options);
}

void run_ranks(std::vector<std::shared_ptr<GroupImpl>> impls,
               const std::function<void(Group)>& body, const GroupOptions& options) {
  std::vector<std::exception_ptr> failures(impls.size());
  std::vector<std::shared_ptr<Lifeline>> lifelines;
  for (const auto& impl : impls) lifelines.push_back(impl->lifeline());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < impls.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        // Made here, so that it is destroyed while an exception of `body` unwinds the stack.
        body(Group(std::move(impls[r]), options));
      } catch (...) {
        failures[r] = std::current_exception();
      }
      lifelines[r]->leave();
    });
  }
  for (auto& thread : threads) thread.join();
  // Prefers the failure of a rank that failed by itself.
  for (const bool by_itself : {true, false}) {
    for (size_t r = 0; r < failures.size(); ++r) {
      if (failures[r] && lifelines[r]->heard_of_loss() != by_itself) {
        std::rethrow_exception(failures[r]);
      }
    }
  }
}

}  // namespace troika::comm::local
