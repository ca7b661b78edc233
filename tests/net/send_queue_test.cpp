#include "troika/net/send_queue.h"

#include <gmock/gmock.h>

#include "troika/base/error.h"

namespace troika::net {
namespace {

using testing::ElementsAre;

class Queue : public testing::Test {
 protected:
  Ticket add(Channel channel, std::string_view text, Priority priority = Priority::normal) {
    const Ticket ticket = ++tickets_;
    queue_.add(std::make_shared<Outgoing>(
        Outgoing{ticket, channel, text, priority, [this, ticket](const Result& r) {
                   results_.push_back({ticket, r.outcome});
                 }}));
    return ticket;
  }
  // The channels of all frames that can go now.
  std::vector<Channel> drain(Carries carries = Carries::all) {
    std::vector<Channel> channels;
    while (auto frame = queue_.next(carries)) {
      channels.push_back(frame->head.channel);
      queue_.wrote(*frame);
    }
    return channels;
  }

  SendQueue queue_;
  Ticket tickets_ = 0;
  std::vector<std::pair<Ticket, Outcome>> results_;
  const std::string long_ = std::string(3 * kMaxFramePayload, 'x');
};

TEST_F(Queue, TheMoreUrgentGoFirstAndEachInItsOrder) {
  add(1, "a", Priority::bulk);
  add(2, "b");
  add(3, "c", Priority::urgent);
  add(4, "d");
  EXPECT_THAT(drain(), ElementsAre(3, 2, 4, 1));
  EXPECT_EQ(results_.size(), 4u);
}

TEST_F(Queue, AnUrgentMessageGoesBetweenTheFramesOfALongOne) {
  add(1, long_, Priority::bulk);
  EXPECT_THAT(drain(), ElementsAre(1)) << "it is announced";
  queue_.grant(1);
  queue_.wrote(*queue_.next(Carries::all));
  add(2, "now", Priority::urgent);
  EXPECT_THAT(drain(), ElementsAre(2, 1, 1));
}

TEST_F(Queue, DataGoOverTheirSocketsAndAllElseOverTheFirst) {
  add(1, long_);
  EXPECT_TRUE(drain(Carries::data).empty());
  EXPECT_THAT(drain(Carries::all_but_data), ElementsAre(1));
  queue_.grant(1);
  EXPECT_TRUE(drain(Carries::all_but_data).empty());
  EXPECT_TRUE(results_.empty());
  EXPECT_THAT(drain(Carries::data), ElementsAre(1, 1, 1));
  EXPECT_THAT(results_, ElementsAre(std::pair(Ticket{1}, Outcome::done)));
}

TEST_F(Queue, NobodySendsMoreThanThereIsCreditFor) {
  const std::string text(kEagerBytes, 'x');
  const size_t most = (kCreditWindow - kAnnounceCredit) / (kEagerBytes + 64);
  for (size_t i = 0; i < most + 2; ++i) add(1, text);
  EXPECT_EQ(drain().size(), most);
  add(2, "small and urgent", Priority::urgent);
  EXPECT_THAT(drain(), ElementsAre(2)) << "there is credit for it";
  queue_.give_credit(kEagerBytes + 64);
  EXPECT_EQ(drain().size(), 1u);
  EXPECT_THROW(queue_.give_credit(kCreditWindow), Error);
}

TEST_F(Queue, MessagesAreAnnouncedWhileTheReceiverHoldsTooMuch) {
  const std::string text(kEagerBytes, 'x');
  for (size_t i = 0; i < 2 * kCreditWindow / kEagerBytes; ++i) add(1, text);
  drain();
  queue_.hold();
  EXPECT_EQ(drain().size(), 2 * kCreditWindow / kEagerBytes - results_.size());
  add(2, "small");
  add(3, "");
  const auto announcement = queue_.next(Carries::all);
  EXPECT_EQ(announcement->head.kind, FrameKind::announce);
  EXPECT_EQ(queue_.next(Carries::all)->head.kind, FrameKind::message) << "nothing to announce";
  queue_.grant(announcement->head.id);
  EXPECT_EQ(queue_.next(Carries::all)->head.kind, FrameKind::data);
  queue_.give_credit(kEagerBytes);
  add(2, "small");
  EXPECT_EQ(queue_.next(Carries::all)->head.kind, FrameKind::message);
}

TEST_F(Queue, WhatNobodyHasHeardOfCanBeCancelled) {
  add(1, "a");
  const Ticket second = add(2, "b");
  EXPECT_EQ(queue_.cancel(second, Outcome::timeout), SendQueue::Cancelled::done);
  EXPECT_THAT(results_, ElementsAre(std::pair(second, Outcome::timeout)));
  EXPECT_EQ(queue_.cancel(second, Outcome::timeout), SendQueue::Cancelled::unknown);
  EXPECT_THAT(drain(), ElementsAre(1));
  const Ticket announced = add(3, long_);
  drain();
  EXPECT_EQ(queue_.cancel(announced, Outcome::timeout), SendQueue::Cancelled::must_end);
}

TEST_F(Queue, AnEndCompletesAllOfThem) {
  add(1, "a");
  add(2, long_);
  queue_.next(Carries::all);
  queue_.fail("gone");
  EXPECT_EQ(results_.size(), 2u);
  EXPECT_TRUE(queue_.is_empty());
}

TEST_F(Queue, RefusedMessagesAreTooLong) {
  add(1, long_);
  drain();
  queue_.refuse(1);
  EXPECT_THAT(results_, ElementsAre(std::pair(Ticket{1}, Outcome::too_long)));
  EXPECT_THROW(queue_.grant(1), Error) << "nothing of that number waits";
}

}  // namespace
}  // namespace troika::net
