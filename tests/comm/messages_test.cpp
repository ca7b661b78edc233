// Errors, warnings and records of messages between two ranks.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <array>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/log.h"
#include "troika/base/temporary_folder.h"
#include "troika/comm/diagnostics/flight_report.h"
#include "troika/comm/diagnostics/message_log.h"
#include "troika/comm/local/local.h"
#include "troika/comm/messages/parcel.h"

namespace troika::comm {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

// Returns the error of each rank; `body` must throw on every rank.
std::vector<Error> errors_of(int size, const std::function<void(const Group&)>& body,
                             const GroupOptions& options) {
  std::vector<std::optional<Error>> errors(static_cast<size_t>(size));
  local::run(
      size,
      [&](const Group& group) {
        try {
          body(group);
        } catch (const Error& error) {
          errors[static_cast<size_t>(group.rank())] = error;
        }
      },
      options);
  std::vector<Error> all;
  for (const auto& error : errors) all.push_back(error.value());
  return all;
}

TEST(Messages, ARingOfRanksThatAllReceiveFirstIsNamed) {
  const auto errors = errors_of(5,
                                [](const Group& group) {
                                  const int n = group.size(), previous = (group.rank() + n - 1) % n;
                                  const auto tensor = at::zeros({8});
                                  group.receive(tensor, previous, 3, "ring").wait();
                                  group.send(tensor, (group.rank() + 1) % n, 3).wait();
                                },
                                {.timeout = Milliseconds(200)});
  for (size_t r = 0; r < errors.size(); ++r) {
    EXPECT_EQ(errors[r].kind(), ErrorKind::timeout);
    EXPECT_THAT(errors[r].what(),
                AllOf(HasSubstr("receive #0 from rank "),
                      HasSubstr(", tag 3 'ring' (messages_test.cpp:"), HasSubstr(" of Float x 8"),
                      HasSubstr(" has not sent it (it waits in receive #0 from rank ")));
  }
}

TEST(Messages, TheOneThatIsMissingHasItsNumber) {
  const auto errors =
      errors_of(2,
                [](const Group& group) {
                  const auto tensor = at::zeros({2});
                  for (int i = 0; i < 3; ++i) {
                    if (group.rank() == 0 && i < 2) group.send(tensor, 1, 7).wait();
                    if (group.rank() == 0) group.send(tensor, 1, 8).wait();
                    if (group.rank() == 1) group.receive(tensor, 0, 8).wait();
                  }
                  group.barrier({.label = "sent"});
                  if (group.rank() == 0) group.receive(tensor, 1, 9).wait();
                  for (int i = 0; i < 3; ++i)
                    group.receive(tensor, 0, 7).wait(Deadline::after(Milliseconds(100)));
                },
                {.timeout = Milliseconds(60'000)});
  EXPECT_THAT(
      errors[1].what(),
      AllOf(HasSubstr("receive #2 from rank 0, tag 7 ("), HasSubstr(" timed out on rank 1"),
            HasSubstr("rank 0 has not sent it (it waits in receive #0 from rank 1, tag 9")));
}

TEST(Messages, OneThatStallsIsWarnedOfBeforeItsDeadline) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "log";
  log::also_to_file(file);
  const auto warned = [&] {
    return read_file(file).find("has been waiting for") != std::string::npos;
  };
  local::run(2,
             [&](const Group& group) {
               const auto tensor = at::zeros({2});
               if (group.rank() == 0) return group.receive(tensor, 1, 4).wait();
               while (!warned()) std::this_thread::yield();
               group.send(tensor, 0, 4);
             },
             {.stall_warning = Milliseconds(1)});
  EXPECT_THAT(read_file(file),
              ContainsRegex("receive #0 from rank 1, tag 4 \\(messages_test.cpp:[0-9]+\\) of Float "
                            "x 2 has been waiting for .*: rank 1 has not sent it \\(it has called "
                            "nothing yet\\)"));
}

TEST(Messages, AreInFlightRecordsAndTheirReport) {
  const TemporaryFolder folder;
  errors_of(3,
            [](const Group& group) {
              const auto tensor = at::zeros({2});
              if (group.rank() == 0) group.send(tensor, 1, 1, "well").wait();
              if (group.rank() == 1) group.receive(tensor, 0, 1, "well").wait();
              group.receive(tensor, (group.rank() + 1) % 3, 2, "never").wait();
            },
            {.timeout = Milliseconds(100), .flight_record = folder.path()});
  EXPECT_THAT(read_file(folder.path() / "world-rank0.json"),
              AllOf(HasSubstr("\"direction\": \"send\""), HasSubstr("\"label\": \"well\""),
                    HasSubstr("\"state\": \"finished\"")));
  const auto report = flight_report(folder.path());
  EXPECT_THAT(report, HasSubstr("failed in a message.\n"));
  for (int r = 0; r < 3; ++r) {
    EXPECT_THAT(report, ContainsRegex(
                            fmt::format("Rank {} waited in receive #0 from rank {}, tag 2 'never' "
                                        "\\(messages_test.cpp:[0-9]+\\) of Float x 2 for ",
                                        r, (r + 1) % 3)));
  }
  EXPECT_THAT(report, testing::Not(HasSubstr("well")));
}

// A back end whose sends wait for their receiver.
class Waiting : public GroupImpl {
 public:
  explicit Waiting(std::shared_ptr<GroupImpl> inner)
      : GroupImpl(inner->info(), inner->lifeline()), inner_(std::move(inner)) {}

  std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    return inner_->send_until_received(peer, tag, data, bytes);
  }
  std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    return inner_->receive(peer, tag, data, bytes);
  }

 private:
  const std::shared_ptr<GroupImpl> inner_;
};

// All ranks list either their sends or their receives first.
void circle(const Group& group) {
  const int n = group.size(), previous = (group.rank() + n - 1) % n;
  for (const bool sends_first : {true, false}) {
    const auto in = at::zeros({20'000});
    std::vector<PointToPoint> messages{
        {Direction::send, at::full({20'000}, group.rank(), at::kFloat), (group.rank() + 1) % n},
        {Direction::receive, in, previous}};
    if (!sends_first) std::swap(messages[0], messages[1]);
    group.batch(messages).wait();
    EXPECT_TRUE(in.eq(previous).all().item<bool>());
  }
}

TEST(Batches, DoNotWaitInACircleWhereSendsCopyAndWhereTheyWait) {
  local::run(3, circle, {.timeout = Milliseconds(20'000)});
  auto impls = local::make(3);
  for (auto& impl : impls) impl = std::make_shared<Waiting>(impl);
  local::run_ranks(std::move(impls), circle, {.timeout = Milliseconds(20'000)});
}

TEST(Batches, AreRefusedAsAWholeBeforeTheyStart) {
  local::run(2, [](const Group& group) {
    const auto tensor = at::zeros({2});
    const int other = 1 - group.rank();
    EXPECT_ERROR(group.batch({{Direction::send, tensor, other}, {Direction::send, tensor, 2}}),
                 ErrorKind::usage,
                 fmt::format("[comm] no such peer for a message; got 2, expected another rank of 0 "
                             "to 1"));
    // The first of them was not sent.
    group.batch({{Direction::send, at::ones({2}), other}, {Direction::receive, tensor, other}})
        .wait();
    EXPECT_TRUE(tensor.eq(1).all().item<bool>());
  });
}

TEST(ReceiveAny, RanksThatHaveAllSentTakeTurns) {
  local::run(3, [](const Group& group) {
    if (group.rank() > 0) {
      for (int i = 0; i < 4; ++i) group.send(at::zeros({1}), 0, 2);
      return group.barrier();
    }
    group.barrier();
    std::vector<int> order;
    for (int i = 0; i < 8; ++i) order.push_back(group.receive_any(at::zeros({1}), 2));
    EXPECT_THAT(order, testing::ElementsAre(1, 2, 1, 2, 1, 2, 1, 2));
  });
}

TEST(ReceiveAny, SaysThatNobodyHasSent) {
  std::promise<void> over;
  local::run(2,
             [&](const Group& group) {
               if (group.rank() == 1) return over.get_future().wait();
               try {
                 group.receive_any(at::zeros({3}), 2, "votes");
                 ADD_FAILURE() << "no error";
               } catch (const Error& error) {
                 EXPECT_EQ(error.kind(), ErrorKind::timeout);
                 EXPECT_THAT(
                     error.what(),
                     AllOf(HasSubstr("receive #0 from any rank, tag 2 'votes' (messages_test.cpp:"),
                           HasSubstr(" of Float x 3 timed out on rank 0 after "),
                           HasSubstr("got no rank has sent one")));
               }
               over.set_value();
             },
             {.timeout = Milliseconds(100)});
}

TEST(ReceiveAny, EndsWhenAllOthersHaveLeft) {
  local::run(2, [&](const Group& group) {
    if (group.rank() == 1) return;
    try {
      group.receive_any(at::zeros({3}));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::peer);
      EXPECT_THAT(error.what(), HasSubstr("all other ranks have left"));
    }
  });
}

TEST(MessageLog, CountsByDirectionPeerAndTagAndKeepsTheLatest) {
  MessageLog log;
  std::map<std::pair<Direction, int>, int64_t> numbers;
  for (int i = 0; i < 300; ++i) {
    MessageFingerprint fingerprint{
        .direction = i % 3 == 0 ? Direction::send : Direction::receive, .peer = i % 2, .tag = 8191};
    const int64_t id = log.begun(fingerprint);
    EXPECT_EQ(fingerprint.number, (numbers[{fingerprint.direction, fingerprint.peer}]++)) << i;
    log.ended(id, true);
  }
  const auto count = [&](Direction direction, int tag, bool on_edge) {
    return log.count({.direction = direction, .peer = 0, .tag = tag, .on_edge = on_edge});
  };
  EXPECT_EQ(count(Direction::send, 8191, false), 50);
  EXPECT_EQ(count(Direction::receive, 8191, false), 100);
  EXPECT_EQ(count(Direction::receive, 8190, false), 0);
  EXPECT_EQ(count(Direction::receive, 8191, true), 0);
  EXPECT_EQ(log.entries().size(), MessageLog::kCapacity);
  EXPECT_EQ(log.entries().front().id, 44);
}

TEST(MessageLog, AWaitOutlivesItsPlaceAmongTheLatest) {
  MessageLog log;
  MessageFingerprint first{.peer = 1, .tag = 5};
  const int64_t id = log.begun(first);
  log.awaited(id, first, Clock::now());
  for (size_t i = 0; i < MessageLog::kCapacity; ++i) {
    MessageFingerprint other{.peer = 2};
    log.ended(log.begun(other), true);
  }
  ASSERT_TRUE(log.waiting());
  EXPECT_EQ(log.waiting()->tag, 5);
  EXPECT_EQ(log.stalled(Milliseconds(0)).size(), 1U);
  EXPECT_TRUE(log.stalled(Milliseconds(0)).empty()) << "told twice";
  log.ended(id, true);
  EXPECT_FALSE(log.waiting());
}

// A back end whose messages are shorter than what their receiver expects.
class Short : public GroupImpl {
 public:
  explicit Short(const std::shared_ptr<GroupImpl>& inner)
      : GroupImpl(world_on_one_node("short", 0, 2), inner->lifeline()) {}

  std::unique_ptr<Transfer> send(int, uint32_t, const void*, size_t) override {
    return std::make_unique<CompletedSend>();
  }
  std::unique_ptr<Transfer> receive(int, uint32_t, void*, size_t) override {
    return std::make_unique<CompletedSend>();
  }
  std::unique_ptr<LentMessage> receive_lent(int, uint32_t, size_t) override {
    struct Lent : LentMessage {
      std::string_view wait(Deadline) override { return "12345678"; }
    };
    return std::make_unique<Lent>();
  }
};

TEST(Messages, OneThatIsShorterThanItsHeadSaysIsNotRead) {
  const auto ranks = local::make(2);
  Short impl(ranks.front());
  const auto soon = Deadline::after(std::chrono::minutes(1));
  std::array<char, 16> head{}, payload{};
  ArrivingParcel too_short(impl, 1, {}, 16, payload.data(), 4);
  EXPECT_ERROR(too_short.wait_for_head(head.data(), soon), ErrorKind::peer,
               "[comm] a message from rank 1 is too short; got 8 bytes, expected at least 16");
  ArrivingParcel without_payload(impl, 1, {}, 8, payload.data(), 4);
  without_payload.wait_for_head(head.data(), soon);
  EXPECT_ERROR(without_payload.wait_for_payload(soon), ErrorKind::peer,
               "[comm] a message from rank 1 is too short; got 8 bytes, expected at least 12");
  for (const auto& rank : ranks) rank->lifeline()->leave();
}

}  // namespace
}  // namespace troika::comm
