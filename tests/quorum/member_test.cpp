// Members of quorums in threads of this process.
#include "troika/quorum/member.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <future>
#include <thread>

#include "tests/quorum/replicas.h"

namespace troika::quorum {
namespace {

using testing::HasSubstr;

class Members : public testing::Test {
 protected:
  MemberOptions options(int rank, const Rules& rules) {
    return {.rank = rank,
            .lighthouse = {"127.0.0.1", lighthouse_->port()},
            .secret = secret_,
            .rules = rules};
  }
  std::string error_of(const std::function<void()>& act) {
    try {
      act();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  const net::Secret secret_ = net::Secret::random();
  std::optional<LighthouseServer> lighthouse_{std::in_place, secret_, net::Address{"127.0.0.1", 0}};
};

TEST_F(Members, AllAliveEqualOneProcess) {
  for (const int count : {1, 2, 3, 5}) {
    lighthouse_.emplace(secret_, net::Address{"127.0.0.1", 0});
    std::vector<std::map<int64_t, Seen>> seen(static_cast<size_t>(count));
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        Member member(options(rank, replica_rules(count)));
        train(
            member, [](int64_t) {}, [](int64_t steps, const Quorum&) { return steps == 5; },
            [&](int64_t step, const Seen& what) { seen[static_cast<size_t>(rank)][step] = what; });
      });
    }
    threads.clear();
    for (const auto& replica : seen) EXPECT_EQ(replica.size(), 5U);
    expect_one_history(seen, 5);
    EXPECT_EQ(lighthouse_->totals(),
              (Totals{.begun = 5 * kReplicaBatch, .counted = 5 * kReplicaBatch}));
  }
}

TEST_F(Members, TooFewReplicasAreNamed) {
  auto rules = replica_rules(2);
  rules.min_replicas = 2;
  rules.join_timeout = 0.3;
  Member member(options(0, rules));
  const auto error = error_of([&] { member.join(); });
  EXPECT_THAT(error, HasSubstr("1 of at least 2 replicas are there (min_replicas 2"));
}

TEST_F(Members, TheEndOfTheLighthouseIsNamed) {
  Member member(options(0, replica_rules(2)));
  std::jthread ending([&] { lighthouse_.reset(); });
  EXPECT_THAT(error_of([&] { member.join(); }), HasSubstr("the lighthouse is lost"));
}

// The lighthouse hears the heartbeats of a member that hangs.
TEST_F(Members, AMemberThatHangsIsLostAlone) {
  auto rules = replica_rules(4);
  rules.timeout = 0.5;
  std::promise<void> others_are_done;
  const auto is_over = others_are_done.get_future().share();
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      Member member(options(rank, rules));
      member.join();
      member.begin_step(0, [] { return ""; });
      const auto one = [](std::span<double> to, bool) { to[0] = 1; };
      if (rank == 0) {
        is_over.wait();
        EXPECT_THAT(error_of([&] { member.sum<double>(1, one); }),
                    HasSubstr("did not begin its sum of step 0 within 0.5 s"));
        return;
      }
      EXPECT_EQ(member.sum<double>(1, one)[0], 3);
      member.begin_step(1, [] { return ""; });
      EXPECT_EQ(member.sum<double>(1, one)[0], 3);
      if (rank == 1) others_are_done.set_value();
    });
  }
}

TEST_F(Members, AMemberIsAskedWhetherToStopWhileItWaits) {
  auto rules = replica_rules(2);
  rules.min_replicas = 2;
  Member first(options(0, rules));
  std::jthread joining([&] {
    Member second(options(1, rules));
    second.join();
  });
  const auto nothing = [] { return ""; };
  first.join();
  first.begin_step(0, nothing);
  joining.join();
  EXPECT_EQ(first.sum<double>(1, [](std::span<double> to, bool) { to[0] = 1; })[0], 1);
  int asked = 0;
  EXPECT_EQ(first.begin_step(1, nothing, [&] { return ++asked == 3; }), std::nullopt);
}

TEST_F(Members, ADonorGivesItsStateWhileItGoesOn) {
  const auto nothing = [](std::span<double> to, bool) { to[0] = 1; };
  Member first(options(0, replica_rules(1)));
  EXPECT_TRUE(first.join().founds);
  first.begin_step(7, [] { return ""; });
  std::optional<Admission> admission;
  std::optional<Member> second;
  std::jthread joining([&] {
    second.emplace(options(1, replica_rules(1)));
    admission = second->join();
  });
  int64_t step = 7;
  // The joiner comes with the step after its report has arrived.
  std::string state(size_t{5} << 20, 'x');
  bool is_asked = false;
  while (!is_asked) {
    EXPECT_EQ(first.sum<double>(1, nothing)[0], 1);
    first.begin_step(++step, [&] {
      is_asked = true;
      return state;
    });
  }
  joining.join();
  EXPECT_EQ(admission->step, step);
  EXPECT_EQ(admission->state, state);
  EXPECT_EQ(second->begin_step(step, [] { return ""; }).value(),
            (Share{kReplicaBatch / 2, kReplicaBatch / 2}));
  std::jthread summing([&] { EXPECT_EQ(second->sum<double>(1, nothing)[0], 2); });
  EXPECT_EQ(first.sum<double>(1, nothing)[0], 2);
  EXPECT_TRUE(first.is_lowest());
}

}  // namespace
}  // namespace troika::quorum
