#include "troika/comm/diagnostics/lifeline.h"

#include <gmock/gmock.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "troika/cluster/rendezvous/answers.h"

namespace troika::comm {
namespace {

// A control plane without other ranks. A test asks questions as another rank would.
class Alone : public ControlPlane {
 public:
  explicit Alone(Listener& listener) : listener_(listener) {}
  void listen(Listener listener) override { listener_ = std::move(listener); }
  void fail(const std::string&) override {}
  void leave(const std::string&) override {}
  cluster::Answers ask_all(const std::string&, Deadline) override { return {}; }

 private:
  Listener& listener_;
};

// Closes a question to a rank that was lost, and tells the listener of the loss a moment later.
class LateNotice : public ControlPlane {
 public:
  ~LateNotice() override { notice_.join(); }
  void listen(Listener listener) override { listener_ = std::move(listener); }
  void fail(const std::string&) override {}
  void leave(const std::string&) override {}
  cluster::Answers ask_all(const std::string&, Deadline) override {
    notice_ = std::thread([this] { listener_.lost(1, "timeout: rank 2 is late"); });
    return {{"", std::nullopt}, {0, 1}};
  }

 private:
  Listener listener_;
  std::thread notice_;
};

Enrolment group(uint32_t id) {
  return {.id = id,
          .tag_space = 0,
          .ranks = {0, 1},
          .recorder = std::make_shared<Recorder>(),
          .owner = {},
          .flight_record = {}};
}

TEST(Lifeline, AnswersForTheGroupsThatWentLast) {
  constexpr uint32_t kGroups = 3000;
  ControlPlane::Listener listener;
  Lifeline lifeline(std::make_unique<Alone>(listener), 0);
  const auto has_left = [&](uint32_t id) {
    const auto status = RankStatus::from_text(listener.answer(std::to_string(id)));
    return status && status->left;
  };
  // The first group outlives all others, so it is destroyed last.
  for (uint32_t id = 0; id < kGroups; ++id) {
    lifeline.enrol(group(id));
    if (id > 0) lifeline.dismiss(id);
  }
  EXPECT_FALSE(has_left(0));
  lifeline.dismiss(0);
  EXPECT_TRUE(has_left(0));
  EXPECT_TRUE(has_left(kGroups - 1));
  EXPECT_FALSE(has_left(1)) << "what is kept of former groups has no bound";
}

TEST(Lifeline, ARankThatGaveUpIsNotTakenForOneThatDoesNotAnswer) {
  Lifeline lifeline(std::make_unique<LateNotice>(), 0);
  lifeline.enrol(group(1));
  const MessageFingerprint message{.direction = Direction::receive, .peer = 1};
  static_cast<void>(lifeline.other_end(1, message, Deadline::after(std::chrono::minutes(1))));
  ASSERT_TRUE(lifeline.is_cut());
  EXPECT_THAT(lifeline.cause()->what(), testing::HasSubstr("rank 2 is late"));
}

}  // namespace
}  // namespace troika::comm
