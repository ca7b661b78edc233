#include "troika/comm/local/local.h"

#include <fmt/format.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

#include "troika/base/error.h"

namespace troika::comm::local {

namespace {

using Message = std::vector<char>;

// Mailboxes between all pairs of ranks.
class Hub {
 public:
  explicit Hub(int size) : size(size) {}

  const int size;

  void put(int from, int to, uint32_t tag, Message message) {
    const std::lock_guard lock(mutex_);
    boxes_[{from, to, tag}].push_back(std::move(message));
    changed_.notify_all();
  }

  Message take(int from, int to, uint32_t tag, Deadline deadline) {
    std::unique_lock lock(mutex_);
    auto& box = boxes_[{from, to, tag}];
    changed_.wait_until(lock, deadline.at(), [&] { return !box.empty() || lost_; });
    // What arrived before a loss is still good.
    if (!box.empty()) {
      Message message = std::move(box.front());
      box.pop_front();
      return message;
    }
    if (lost_) throw Error("comm", ErrorKind::peer, {.what = *lost_});
    throw Error("comm", ErrorKind::timeout,
                {.what = fmt::format("no message from rank {} in time", from)});
  }

  void abandon(int rank, const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (!lost_) lost_ = fmt::format("rank {} is gone: {}", rank, reason);
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::tuple<int, int, uint32_t>, std::deque<Message>> boxes_;
  std::optional<std::string> lost_;
};

class Sent : public Transfer {
 public:
  void wait(Deadline) override {}
};

class Arriving : public Transfer {
 public:
  Arriving(Hub& hub, int from, int to, uint32_t tag, void* data, size_t bytes)
      : hub_(hub), from_(from), to_(to), tag_(tag), data_(data), bytes_(bytes) {}

  void wait(Deadline deadline) override {
    const Message message = hub_.take(from_, to_, tag_, deadline);
    TROIKA_CHECK(message.size() == bytes_, "a message of another size than was expected");
    std::memcpy(data_, message.data(), bytes_);
  }

 private:
  Hub& hub_;
  int from_;
  int to_;
  uint32_t tag_;
  void* data_;
  size_t bytes_;
};

class LocalGroup : public GroupImpl {
 public:
  LocalGroup(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  std::string_view backend() const override { return "local"; }
  int rank() const override { return rank_; }
  int size() const override { return hub_->size; }

  std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    const auto* begin = static_cast<const char*>(data);
    hub_->put(rank_, peer, tag, Message(begin, begin + bytes));
    return std::make_unique<Sent>();
  }
  std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    return std::make_unique<Arriving>(*hub_, peer, rank_, tag, data, bytes);
  }
  void abandon(const std::string& reason) override { hub_->abandon(rank_, reason); }

 private:
  std::shared_ptr<Hub> hub_;
  int rank_;
};

bool only_noticed_a_peer(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.kind() == ErrorKind::peer;
  } catch (...) {
    return false;
  }
}

}  // namespace

std::vector<std::unique_ptr<GroupImpl>> make(int size) {
  TROIKA_CHECK(size >= 1, "a group has at least one rank");
  const auto hub = std::make_shared<Hub>(size);
  std::vector<std::unique_ptr<GroupImpl>> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<LocalGroup>(hub, r));
  return ranks;
}

Group alone(const GroupOptions& options) {
  return Group(std::move(make(1).front()), options);
}

void run(int size, const std::function<void(Group)>& body, const GroupOptions& options) {
  auto impls = make(size);
  std::vector<std::exception_ptr> failures(impls.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < impls.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        // Made here, so that an exception of `body` is unwinding when the group goes.
        body(Group(std::move(impls[r]), options));
      } catch (...) {
        failures[r] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::exception_ptr chosen;
  for (const auto& failure : failures) {
    if (failure && (!chosen || only_noticed_a_peer(chosen))) chosen = failure;
  }
  if (chosen) std::rethrow_exception(chosen);
}

}  // namespace troika::comm::local
