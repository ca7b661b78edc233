// Processes of a parameter server that are killed or stopped at random instants of random steps.
// TROIKA_SERVER_KILLS is their number, TROIKA_SERVER_KILL_SEED determines the instants.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/server/child.h"
#include "troika/base/random.h"
#include "troika/base/text.h"

namespace troika::server {
namespace {

constexpr int kSteps = 30;
// A step takes a few milliseconds.
constexpr uint64_t kMostMicroseconds = 8000;

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text ? static_cast<uint64_t>(parse_int(text).value()) : otherwise;
}

double sum_of(const Child& worker) {
  const auto& text = worker.text();
  const auto at = text.rfind("sum ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + 4));
}

// Both workers add 1 to each weight in each step, and check that a step is whole.
void lose_one(const std::string& victim, int signal, int step, std::chrono::microseconds later) {
  Processes processes(TROIKA_WORLD_NODE, 2, 2, {std::to_string(kSteps), "1"});
  const bool is_worker = victim.starts_with("worker");
  const std::string other = victim == "worker1" ? "worker0" : "worker1";
  auto& watched = is_worker ? processes[victim] : processes[other];
  ASSERT_TRUE(watched.wait_for(fmt::format("step {}", step)));
  // The instant is random; nothing waits for it.
  std::this_thread::sleep_for(later);
  processes[victim].signal(signal);
  ASSERT_EQ(processes[other].end(), 0);
  processes[victim].signal(SIGKILL);
  EXPECT_EQ(processes[victim].end(), 128 + SIGKILL) << "it has not ended before";
  for (const std::string name : {"worker0", "worker1", "server0", "server1", "scheduler0"}) {
    if (name == victim) continue;
    EXPECT_EQ(processes[name].end(), 0) << name;
  }
  if (is_worker) {
    // Steps that it had ended count, and at most the one in which it was lost.
    EXPECT_GE(sum_of(processes[other]), kSteps + step + 1);
    EXPECT_LE(sum_of(processes[other]), 2 * kSteps);
  } else {
    EXPECT_EQ(sum_of(processes["worker0"]), 2 * kSteps);
    EXPECT_EQ(sum_of(processes["worker1"]), 2 * kSteps);
  }
}

TEST(ServerKills, AtRandomInstants) {
  Random random(number_from("TROIKA_SERVER_KILL_SEED", 1));
  const uint64_t kills = number_from("TROIKA_SERVER_KILLS", 3);
  for (uint64_t kill = 0; kill < kills && !HasFailure(); ++kill) {
    const auto victim =
        fmt::format("{}{}", random.below(2) == 0 ? "server" : "worker", random.below(2));
    const int signal = random.below(2) == 0 ? SIGKILL : SIGSTOP;
    const auto step = static_cast<int>(random.below(kSteps - 10));
    const std::chrono::microseconds later(random.below(kMostMicroseconds));
    SCOPED_TRACE(fmt::format("loss {}: {} gets signal {} {} us after step {}", kill, victim, signal,
                             later.count(), step));
    lose_one(victim, signal, step, later);
  }
}

}  // namespace
}  // namespace troika::server
