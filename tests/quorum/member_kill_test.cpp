// Replicas that are killed between and within the parts of a step, and others in their place.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>
#include <tuple>

#include "tests/quorum/replicas.h"
#include "troika/base/clock.h"
#include "troika/base/temporary_folder.h"

namespace troika::quorum {
namespace {

constexpr int kReplicas = 3;
constexpr int64_t kStepOfKill = 3;
constexpr int64_t kLeastSteps = 6;

struct Victim {
  int rank = -1;
  Phase phase = {};
  pid_t other = 0;  // the process to kill instead
};

// A replica writes one of these for the parent after each step.
struct Told {
  int64_t steps = 0;
  int64_t members = 0;
  Totals totals;  // before the next step
};

// These options say how a replica trains.
struct Plan {
  int64_t least_steps = kLeastSteps;  // it ends after these, when all replicas are there
  double step_seconds = 0;            // that the gradient takes at least
  int told = -1;                      // the descriptor to which it writes a Told after each step
};

// Appends what it sees to a file.
void be_replica(int rank, int port, const net::Secret& secret, const Victim& victim,
                const std::filesystem::path& file, const Rules& rules, const Plan& plan = {}) {
  int64_t now = 0;
  Member member({.rank = rank,
                 .lighthouse = {"127.0.0.1", port},
                 .secret = secret,
                 .rules = rules,
                 .on_phase = [&](Phase phase) {
                   if (phase == Phase::before_sum && plan.step_seconds > 0) {
                     std::this_thread::sleep_for(std::chrono::duration<double>(plan.step_seconds));
                   }
                   if (rank == victim.rank && now == kStepOfKill && phase == victim.phase) {
                     ::kill(victim.other != 0 ? victim.other : ::getpid(), SIGKILL);
                   }
                 }});
  std::ofstream out(file);
  out.precision(17);
  train(
      member, [&](int64_t step) { now = step; },
      [&](int64_t steps, const Quorum& counted) {
        return steps >= plan.least_steps && counted.members.size() == kReplicas;
      },
      [&](int64_t step, const Seen& what) {
        out << step << " " << what.bits << " " << what.shares.size();
        for (const auto& share : what.shares) out << " " << share.first << " " << share.count;
        for (const double value : what.state) out << " " << value;
        out << "\n" << std::flush;
        const Told told{step + 1, static_cast<int64_t>(what.shares.size()), member.totals()};
        if (plan.told >= 0 && ::write(plan.told, &told, sizeof(told)) != sizeof(told)) ::_exit(1);
      });
}

std::map<int64_t, Seen> read_seen(const std::filesystem::path& file) {
  std::map<int64_t, Seen> result;
  std::ifstream in(file);
  int64_t step = 0;
  size_t shares = 0;
  Seen one;
  while (in >> step >> one.bits >> shares) {
    one.shares.resize(shares);
    for (auto& share : one.shares) in >> share.first >> share.count;
    one.state.resize((kSize + 996) / 997);
    for (auto& value : one.state) in >> value;
    result[step] = one;
  }
  return result;
}

class MemberKills : public testing::TestWithParam<std::tuple<int, Phase>> {};

TEST_P(MemberKills, CostTheVictimsShareOfOneStep) {
  const TemporaryFolder folder;
  const auto secret = net::Secret::random();
  const Victim victim{std::get<0>(GetParam()), std::get<1>(GetParam())};
  Processes processes;
  processes.write_errors_to(folder / "errors");
  const int port = processes.lighthouse(secret);
  std::map<int, pid_t> pids;
  const auto file = [&](const std::string& name) { return folder / ("seen-" + name); };
  for (int rank = 0; rank < kReplicas; ++rank) {
    pids[rank] = processes.fork([&, rank] {
      be_replica(rank, port, secret, victim, file(std::to_string(rank)), replica_rules(kReplicas));
    });
  }
  EXPECT_TRUE(WIFSIGNALED(processes.wait(pids[victim.rank])));
  pids[victim.rank] = processes.fork(
      [&] { be_replica(victim.rank, port, secret, {}, file("joiner"), replica_rules(kReplicas)); });
  for (const auto& [rank, pid] : pids) {
    EXPECT_EQ(processes.wait(pid), 0) << rank << read_file(folder / "errors");
  }
  std::vector<std::map<int64_t, Seen>> seen;
  for (const auto* name : {"0", "1", "2", "joiner"}) seen.push_back(read_seen(file(name)));
  EXPECT_FALSE(seen.back().empty());
  const auto& survivor = seen[victim.rank == 0 ? 1 : 0];
  const auto steps = static_cast<int64_t>(survivor.size());
  EXPECT_GE(steps, kLeastSteps);
  expect_one_history(seen, steps);
  // A vote that has arrived counts, and so does its sum.
  const size_t counted = survivor.at(kStepOfKill).shares.size();
  if (victim.phase == Phase::after_vote) {
    EXPECT_GE(counted, 2U);
  } else {
    EXPECT_EQ(counted, 2U);
  }
}

INSTANTIATE_TEST_SUITE_P(Phases, MemberKills,
                         testing::Combine(testing::Values(0, 1),
                                          testing::Values(Phase::before_sum, Phase::in_sum,
                                                          Phase::before_vote, Phase::after_vote)));

double number_of(const char* variable, double otherwise) {
  const char* const text = std::getenv(variable);
  return text ? std::stod(text) : otherwise;
}

// scripts/test-ft-kills makes more of them, and prints what is lost. A kill comes at a random
// instant when all replicas are there again, some steps after the one before.
TEST(Kills, AtRandomInstants) {
  const auto kills = static_cast<int>(number_of("TROIKA_FT_KILLS", 10));
  const auto interval = static_cast<int64_t>(number_of("TROIKA_FT_STEPS_PER_KILL", 10));
  std::mt19937 random(static_cast<unsigned>(number_of("TROIKA_FT_SEED", 1)));
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Plan plan{.least_steps = (kills + 1) * interval,
                  .step_seconds = number_of("TROIKA_FT_STEP_SECONDS", 0),
                  .told = ends[1]};
  const TemporaryFolder folder;
  const auto secret = net::Secret::random();
  Processes processes;
  processes.write_errors_to(folder / "errors");
  const int port = processes.lighthouse(secret);
  std::map<int, pid_t> pids;
  int started = 0;
  const auto file = [&](int number) { return folder / std::to_string(number); };
  const auto start = [&](int rank) {
    const int number = started++;
    pids[rank] = processes.fork([&, rank, number] {
      be_replica(rank, port, secret, {}, file(number), replica_rules(kReplicas), plan);
    });
  };
  for (int rank = 0; rank < kReplicas; ++rank) start(rank);
  const auto begun = Clock::now();
  Told told;
  int64_t next = interval;
  for (int kill = 0; kill < kills;) {
    ASSERT_EQ(::read(ends[0], &told, sizeof(told)), ssize_t{sizeof(told)});
    if (told.steps < next || told.members < kReplicas) continue;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    const auto rank = static_cast<int>(random() % kReplicas);
    ::kill(pids[rank], SIGKILL);
    processes.wait(pids[rank]);
    start(rank);
    ++kill;
    next = told.steps + interval;
  }
  // The replicas must not wait for a reader of what they tell.
  std::jthread reading([&] {
    Told more;
    while (::read(ends[0], &more, sizeof(more)) == ssize_t{sizeof(more)} && more.steps > 0) {
      told = more;
    }
  });
  for (const auto& [rank, pid] : pids) {
    EXPECT_EQ(processes.wait(pid), 0) << rank << read_file(folder / "errors");
  }
  const Told last{};
  ASSERT_EQ(::write(ends[1], &last, sizeof(last)), ssize_t{sizeof(last)});
  reading.join();
  std::vector<std::map<int64_t, Seen>> seen;
  for (int number = 0; number < started; ++number) seen.push_back(read_seen(file(number)));
  expect_one_history(seen, told.steps);
  EXPECT_EQ(told.totals.lost, kills);
  const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
  const auto share =
      static_cast<double>(told.totals.counted) / static_cast<double>(told.totals.begun);
  fmt::print(
      R"({{"kills": {}, "steps": {}, "samples_begun": {}, "samples_counted": {}, "goodput": {:.4f}, )"
      R"("step_seconds": {}, "seconds": {:.1f}}})"
      "\n",
      kills, told.steps, told.totals.begun, told.totals.counted, share, plan.step_seconds, seconds);
}

TEST(Kills, TheEndOfTheLighthouseIsNamedByAll) {
  const TemporaryFolder folder;
  const auto secret = net::Secret::random();
  Processes processes;
  processes.write_errors_to(folder / "errors");
  const int port = processes.lighthouse(secret);
  const Victim victim{0, Phase::in_sum, processes.lighthouse_process()};
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 2; ++rank) {
    pids.push_back(processes.fork([&, rank] {
      be_replica(rank, port, secret, victim, folder / std::to_string(rank), replica_rules(2));
    }));
  }
  for (const auto pid : pids) {
    const int status = processes.wait(pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ErrorKind::peer))
        << status;
  }
  const auto errors = read_file(folder / "errors");
  const auto named = errors.find("the lighthouse is lost");
  ASSERT_NE(named, std::string::npos) << errors;
  EXPECT_NE(errors.find("the lighthouse is lost", named + 1), std::string::npos) << errors;
}

}  // namespace
}  // namespace troika::quorum
