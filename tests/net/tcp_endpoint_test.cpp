#include "troika/net/tcp_endpoint.h"

#include <gmock/gmock.h>

#include <ctime>
#include <thread>

#include "tests/net/endpoints.h"
#include "tests/support/errors.h"

namespace troika::net {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Kind {
  Protection protection;
  int streams;
  bool polls = true;
};

class TcpMessages : public testing::TestWithParam<Kind> {
 protected:
  static TcpOptions options(const std::string& name, const Secret& secret) {
    TcpOptions options = options_for(name, secret);
    options.protection = GetParam().protection;
    options.streams = GetParam().streams;
    options.polls = GetParam().polls;
    return options;
  }
  void SetUp() override { a_.connect("b", b_.addresses(), soon()); }

  const Secret secret_ = Secret::random();
  TcpEndpoint a_{options("a", secret_)};
  TcpEndpoint b_{options("b", secret_)};
};

TEST_P(TcpMessages, OfEverySizeComeOutAsTheyWentIn) {
  for (const size_t size : {size_t{0}, size_t{1}, kEagerBytes - 1, kEagerBytes, kEagerBytes + 1,
                            kMaxFramePayload + 17, 5 * kMaxFramePayload + 1}) {
    const std::string text = random_text(size, size);
    for (const bool posted_first : {true, false}) {
      for (auto [from, to] : {std::pair(&a_, &b_), std::pair(&b_, &a_)}) {
        std::optional<Receipt> receipt;
        if (posted_first) receipt.emplace(*to, from->name(), 7, size + 3);
        std::optional<Result> sent;
        from->send(to->name(), 7, std::string_view(text), Priority::normal,
                   [&](const Result& result) { sent = result; });
        if (!posted_first) receipt.emplace(*to, from->name(), 7, size + 3);
        EXPECT_EQ(receipt->text(), text) << size;
        EXPECT_TRUE(from->run_until([&] { return sent.has_value(); }, kSoon));
        EXPECT_EQ(sent->outcome, Outcome::done);
      }
    }
  }
}

TEST_P(TcpMessages, OfSeveralPiecesAreOne) {
  const std::string big = random_text(kMaxFramePayload + 5, 3);
  Receipt small(b_, "a", 1, 100), large(b_, "a", 1, 2 * big.size() + 10);
  send_by(a_, "b", 1, {"head ", "", "body", " tail"}, soon());
  send_by(a_, "b", 1, {"head ", big, "-", big}, soon());
  EXPECT_EQ(small.text(), "head body tail");
  EXPECT_EQ(large.text(), "head " + big + "-" + big);
}

// Otherwise a small message is written before send() returns.
TEST_P(TcpMessages, ThatAreHeldLeaveTogether) {
  Receipt first(b_, "a", 1, 5), second(b_, "a", 2, 6);
  int written = 0;
  const auto send = [&](Channel channel, std::string_view text) {
    a_.send("b", channel, text, Priority::normal, [&](const Result&) { ++written; });
  };
  const auto count = [&] {
    int now = 0;
    act_on(a_, [&] { now = written; });
    return now;
  };
  a_.hold_sends("b");
  a_.hold_sends("b");
  send(1, "first");
  a_.release_sends("b");
  send(2, "second");
  EXPECT_EQ(count(), 0);
  a_.release_sends("b");
  EXPECT_EQ(count(), 2);
  EXPECT_EQ(first.text(), "first");
  EXPECT_EQ(second.text(), "second");
}

TEST_P(TcpMessages, KeepTheOrderOfTheirChannelLongOrShort) {
  constexpr int kMessages = 300;
  Random random(4);
  std::vector<std::string> texts;
  for (int i = 0; i < kMessages; ++i) {
    texts.push_back(
        random_text(random.below(2) ? random.below(200) : random.below(3 * kEagerBytes), i));
  }
  size_t sent = 0;
  std::thread sender([&] {
    for (const auto& text : texts) {
      a_.send("b", 1, std::string_view(text), Priority::normal, [&](const Result&) { ++sent; });
    }
    EXPECT_TRUE(a_.run_until([&] { return sent == texts.size(); }, kSoon));
  });
  for (const auto& text : texts) {
    Receipt receipt(b_, "a", 1, 3 * kEagerBytes);
    EXPECT_EQ(receipt.text(), text);
  }
  sender.join();
}

TEST_P(TcpMessages, ThatNobodyTakesDoNotStopOtherChannels) {
  constexpr size_t kMessages = 3000;
  const std::string text = random_text(8000, 1);
  for (size_t i = 0; i < kMessages; ++i) {
    a_.send("b", 1, std::string_view(text), Priority::normal, {});
  }
  Receipt now(b_, "a", 2, 3);
  send_by(a_, "b", 2, "now", soon());
  EXPECT_EQ(now.text(), "now");
  for (size_t i = 0; i < kMessages; ++i) {
    Receipt receipt(b_, "a", 1, text.size());
    ASSERT_EQ(receipt.text(), text) << i;
  }
}

TEST_P(TcpMessages, OfManyThreadsBothWaysFindTheirChannels) {
  constexpr int kThreads = 3, kMessages = 100;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    for (auto [from, to] : {std::pair(&a_, &b_), std::pair(&b_, &a_)}) {
      threads.emplace_back([&, t, from = from, to = to] {
        const std::string text = random_text(size_t{1000} << (4 * t), static_cast<uint64_t>(t));
        std::string buffer(text.size(), '?');
        for (int i = 0; i < kMessages; ++i) {
          Receipt receipt(*from, to->name(), static_cast<Channel>(t), text.size());
          send_by(*from, to->name(), static_cast<Channel>(t), std::string_view(text), soon());
          EXPECT_EQ(receipt.text(), text);
        }
      });
    }
  }
  for (auto& thread : threads) thread.join();
}

TEST_P(TcpMessages, ThatAreTooLongAreToldAtBothEnds) {
  const std::string text(kEagerBytes + 1, 'x');
  Receipt long_one(b_, "a", 1, kEagerBytes);
  EXPECT_ERROR(send_by(a_, "b", 1, std::string_view(text), soon()), ErrorKind::usage,
               "[net] a message to b has no room; got 263169 bytes, expected at most what the "
               "receiver accepts and has memory for");
  EXPECT_EQ(long_one.wait().outcome, Outcome::too_long);
  Receipt short_one(b_, "a", 1, 3);
  send_by(a_, "b", 1, "four", soon());
  EXPECT_EQ(short_one.wait().outcome, Outcome::too_long);
  Receipt next(b_, "a", 1, 10);
  send_by(a_, "b", 1, "good", soon());
  EXPECT_EQ(next.text(), "good") << "the connection stays open";
}

TEST_P(TcpMessages, GoToHandlersWhereNobodyReceives) {
  std::vector<std::string> got;
  send_by(a_, "b", 9, "before", soon());
  b_.handle(9, 1 << 20, [&](const std::string& peer, const std::string& text) {
    got.push_back(peer + ":" + text.substr(0, 6));
  });
  const std::string text(1 << 20, 'x');
  send_by(a_, "b", 9, std::string_view(text), soon());
  EXPECT_ERROR(send_by(a_, "b", 9, {text, "x"}, soon()), ErrorKind::usage,
               "[net] a message to b has no room; got 1048577 bytes, expected at most what the "
               "receiver accepts and has memory for");
  EXPECT_TRUE(b_.run_until([&] { return got.size() == 2; }, kSoon));
  EXPECT_THAT(got, ElementsAre("a:before", "a:xxxxxx"));
  b_.handle(9, 0, {});
}

TEST_P(TcpMessages, WaitForCreditAndLoseNothing) {
  const std::string text(1000, 'x');
  const size_t count = 3 * kCreditWindow / text.size();
  size_t sent = 0;
  for (size_t i = 0; i < count; ++i) {
    a_.send("b", 1, std::string_view(text), Priority::normal, [&](const Result&) { ++sent; });
  }
  // Nobody receives: the peer holds no more than the window.
  Receipt other(b_, "a", 2, 10);
  a_.run_until([&] { return sent * text.size() > kCreditWindow; }, Milliseconds(50));
  EXPECT_LE(sent * text.size(), kCreditWindow);
  for (size_t i = 0; i < count; ++i) EXPECT_EQ(Receipt(b_, "a", 1, 1000).text(), text);
  EXPECT_TRUE(a_.run_until([&] { return sent == count; }, kSoon));
}

TEST_P(TcpMessages, CanBeGivenUpByTheirReceiver) {
  std::string buffer(100, '?');
  EXPECT_ERROR(receive_by(b_, "a", 1, buffer, Deadline::after(Milliseconds(5))), ErrorKind::timeout,
               "[net] a message from a did not finish in time");
  send_by(a_, "b", 1, "later", soon());
  EXPECT_EQ(Receipt(b_, "a", 1, 10).text(), "later");
  EXPECT_EQ(buffer, std::string(100, '?'));
}

TEST_P(TcpMessages, ThatWereAnnouncedAndGivenUpEndTheConnection) {
  const std::string text(kEagerBytes + 1, 'x');
  Watch watch(b_);
  EXPECT_ERROR(send_by(a_, "b", 1, std::string_view(text), Deadline::after(Milliseconds(20))),
               ErrorKind::timeout, "[net] a message to b did not finish in time");
  EXPECT_TRUE(watch.wait("a", false));
  a_.connect("b", b_.addresses(), soon());
  send_by(a_, "b", 1, "again", soon());
  EXPECT_EQ(Receipt(b_, "a", 1, 10).text(), "again");
}

TEST_P(TcpMessages, SentBeforeTheSenderLeavesArrive) {
  const std::string text = random_text(3'000'000, 1);
  Watch watch(b_);
  Receipt receipt(b_, "c", 1, text.size()), last(b_, "c", 2, 10);
  EXPECT_EQ(receipt.wait().outcome, Outcome::lost) << "c is not there yet";
  std::optional<Receipt> big;
  {
    TcpEndpoint c(options("c", secret_));
    c.connect("b", b_.addresses(), soon());
    EXPECT_TRUE(watch.wait("c", true));
    big.emplace(b_, "c", 1, text.size());
    c.send("b", 1, std::string_view(text), Priority::bulk, {});
    c.send("b", 2, "bye", Priority::normal, {});
  }
  EXPECT_TRUE(watch.wait("c", false));
  EXPECT_EQ(watch.reason("c"), "it has left");
  EXPECT_EQ(big->text(), text);
  EXPECT_EQ(Receipt(b_, "c", 2, 10).text(), "bye");
  EXPECT_EQ(Receipt(b_, "c", 2, 10).wait().outcome, Outcome::lost);
}

TEST_P(TcpMessages, LeaveNothingThatKeepsAnEndpointBusy) {
  const std::string text = random_text(20'000'000, 1);
  Receipt receipt(b_, "a", 1, text.size());
  send_by(a_, "b", 1, text, soon());
  EXPECT_EQ(receipt.wait().outcome, Outcome::done);
  const auto processor_time = [] {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + Duration(time.tv_nsec);
  };
  const auto before = processor_time();
  a_.run_until([] { return false; }, Milliseconds(200));
  EXPECT_LT(processor_time() - before, Milliseconds(50));
}

TEST_P(TcpMessages, TimersComeInTheirOrderAndCanBeCancelled) {
  std::vector<int> order;
  a_.after(Milliseconds(30), [&] { order.push_back(3); });
  const Ticket cancelled = a_.after(Milliseconds(20), [&] { order.push_back(2); });
  a_.after(Milliseconds(10), [&] { order.push_back(1); });
  a_.cancel(cancelled, Outcome::cancelled);
  EXPECT_TRUE(a_.run_until([&] { return order.size() == 2; }, kSoon));
  EXPECT_THAT(order, ElementsAre(1, 3));
}

// Counts the messages of a channel that no receive is posted for.
class Count {
 public:
  Count(
      Endpoint& endpoint, Channel channel, std::function<void()> then = [] {})
      : endpoint_(endpoint), channel_(channel) {
    endpoint.handle(channel, 0, [this, then](const std::string&, const std::string&) {
      ++count_;
      then();
    });
  }
  ~Count() { endpoint_.handle(channel_, 0, {}); }
  Count(const Count&) = delete;
  Count& operator=(const Count&) = delete;

  // For callbacks of the endpoint.
  int count() const { return count_; }

 private:
  Endpoint& endpoint_;
  const Channel channel_;
  int count_ = 0;
};

// Messages, one at a time, that keep the receiver's thread polling.
class Ticks {
 public:
  Ticks(Endpoint& from, Endpoint& to) : from_(from), to_(to.name()), came_(to, kChannel) {}
  // For callbacks of the receiver. Returns the number of messages that have come.
  int go_on() {
    if (came_.count() == sent_) {
      ++sent_;
      from_.send(to_, kChannel, "", Priority::normal, {});
    }
    return came_.count();
  }

 private:
  static constexpr Channel kChannel = 99;
  Endpoint& from_;
  const std::string to_;
  const Count came_;
  int sent_ = 0;
};

TEST_P(TcpMessages, ThatAnotherThreadReadsWakeTheThreadThatWaitsForThem) {
  Ticks ticks(a_, b_);
  const Count of_this(b_, 1), of_other(b_, 2);
  bool is_other_there = false, is_sent = false;
  std::thread other;
  const auto run_other = [&] {
    EXPECT_TRUE(b_.run_until(
        [&] {
          is_other_there = true;
          return of_other.count() > 0;
        },
        2 * kSoon));
    a_.send("b", 1, "", Priority::normal, {});
  };
  EXPECT_TRUE(b_.run_until(
      [&] {
        if (is_other_there) {
          // Nothing comes but this message, and another one after it has been taken.
          if (!std::exchange(is_sent, true)) a_.send("b", 2, "", Priority::normal, {});
        } else if (ticks.go_on() > 3 && !other.joinable()) {
          other = std::thread(run_other);
        }
        return of_this.count() > 0;
      },
      kSoon));
  other.join();
}

TEST_P(TcpMessages, StartTimersThatComeInTime) {
  const Count second(b_, 2);
  const Count first(b_, 1, [this] {
    b_.after(Duration(0), [this] { a_.send("b", 2, "", Priority::normal, {}); });
  });
  Ticks ticks(a_, b_);
  bool is_sent = false;
  EXPECT_TRUE(b_.run_until(
      [&] {
        if (!is_sent && ticks.go_on() > 3) {
          is_sent = true;
          a_.send("b", 1, "", Priority::normal, {});
        }
        return second.count() > 0;
      },
      kSoon));
}

TEST_P(TcpMessages, DoNotDelayTimersOfOtherThreads) {
  const auto deadline = soon();
  Ticks ticks(a_, b_);
  const Count answers(b_, 1);
  for (int round = 1; round <= 20; ++round) {
    int first = -1;
    std::thread other;
    const auto run_other = [this] {
      b_.after(Duration(0), [this] { a_.send("b", 1, "", Priority::normal, {}); });
    };
    EXPECT_TRUE(b_.run_until(
        [&] {
          const int came = ticks.go_on();
          if (first < 0) first = came;
          if (came > first + 3 && !other.joinable()) other = std::thread(run_other);
          return answers.count() == round;
        },
        deadline.left()));
    if (other.joinable()) other.join();
  }
}

INSTANTIATE_TEST_SUITE_P(, TcpMessages,
                         testing::Values(Kind{Protection::none, 1}, Kind{Protection::none, 3},
                                         Kind{Protection::authenticated, 1, /*polls=*/false},
                                         Kind{Protection::authenticated, 2},
                                         Kind{Protection::encrypted, 1},
                                         Kind{Protection::encrypted, 3}),
                         [](const auto& info) {
                           return std::string(name(info.param.protection)) +
                                  std::to_string(info.param.streams);
                         });

}  // namespace
}  // namespace troika::net
