// Replicas of a small problem with a known solution, and processes to run them in.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/quorum/lighthouse_server.h"
#include "troika/quorum/member.h"

namespace troika::quorum {

inline constexpr int64_t kReplicaBatch = 12;
// The size of the state. In a ring of two or three, messages are longer than one frame.
inline constexpr size_t kSize = 30'000;
inline constexpr int64_t kSamples = 60;
inline constexpr double kRate = 0.3;

using State = std::vector<double>;

// The sum of the gradients of (w - target)^2 / 2 over samples [first, first + count) of a step.
inline void add_gradient(const State& w, int64_t step, const Share& share, State& sum) {
  for (int64_t i = share.first; i < share.first + share.count; ++i) {
    const auto sample = static_cast<double>((step * kReplicaBatch + i) % kSamples);
    for (size_t k = 0; k < w.size(); ++k) {
      sum[k] += w[k] - sample * (1 + 1e-3 * static_cast<double>(k));
    }
  }
}

inline void apply(State& w, const State& sum, int64_t samples) {
  for (size_t k = 0; k < w.size(); ++k) w[k] -= kRate * sum[k] / static_cast<double>(samples);
}

// One replica saw this of a step: the shares that counted, and some elements of the state after it.
struct Seen {
  std::vector<Share> shares;
  std::vector<double> state;
  uint64_t bits = 0;  // of the whole state
};

inline Seen seen(const State& w, const Quorum& counted) {
  Seen result;
  for (const auto& member : counted.members) result.shares.push_back(member.share);
  for (size_t k = 0; k < w.size(); k += 997) result.state.push_back(w[k]);
  for (const double value : w) {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    result.bits = (result.bits ^ bits) * 1099511628211U;
  }
  return result;
}

inline Rules replica_rules(int replicas) {
  return {.replicas = replicas, .min_replicas = 1, .global_batch = kReplicaBatch};
}

// Trains until `is_over` after a step, which all members decide alike. Calls `note` after each
// step.
inline void train(Member& member, const std::function<void(int64_t step)>& before,
                  const std::function<bool(int64_t steps, const Quorum& counted)>& is_over,
                  const std::function<void(int64_t step, const Seen&)>& note) {
  const auto admission = member.join();
  if (admission.is_finished) return;
  State w(kSize, 0.0);
  std::memcpy(w.data(), admission.state.data(), admission.state.size());
  for (int64_t step = admission.step;; ++step) {
    before(step);
    const auto share = *member.begin_step(step, [&] {
      return std::string(reinterpret_cast<const char*>(w.data()), w.size() * sizeof(double));
    });
    State own(kSize, 0.0);
    add_gradient(w, step, share, own);
    const auto sum = member.sum<double>(
        kSize, [&](std::span<double> to, bool) { std::ranges::copy(own, to.begin()); });
    apply(w, sum, member.counted().samples());
    note(step, seen(w, member.counted()));
    if (is_over(step + 1, member.counted())) break;
  }
  member.leave(true);
}

// Fails unless all replicas saw the same, and each step is that of one process on the samples that
// counted.
inline void expect_one_history(const std::vector<std::map<int64_t, Seen>>& replicas,
                               int64_t steps) {
  State w(kSize, 0.0);
  for (int64_t step = 0; step < steps; ++step) {
    const Seen* first = nullptr;
    for (const auto& replica : replicas) {
      const auto found = replica.find(step);
      if (found == replica.end()) continue;
      if (!first) first = &found->second;
      ASSERT_EQ(found->second.bits, first->bits) << "step " << step;
    }
    ASSERT_NE(first, nullptr) << "step " << step;
    State sum(kSize, 0.0);
    int64_t samples = 0;
    for (const auto& share : first->shares) {
      add_gradient(w, step, share, sum);
      samples += share.count;
    }
    apply(w, sum, samples);
    size_t at = 0;
    for (size_t k = 0; k < w.size(); k += 997) {
      ASSERT_NEAR(w[k], first->state[at++], 1e-10 * (1 + std::abs(w[k]))) << "step " << step;
    }
  }
}

// Forked processes, which end with an exit code of 0 or that of their error. Must be forked while
// this process has one thread.
class Processes {
 public:
  ~Processes() {
    for (const auto pid : pids_) ::kill(pid, SIGKILL);
    for (const auto pid : pids_) ::waitpid(pid, nullptr, 0);
  }
  pid_t fork(const std::function<void()>& work) {
    const auto pid = ::fork();
    if (pid == 0) {
      ::alarm(300);
      int code = 0;
      try {
        work();
      } catch (const std::exception& problem) {
        std::ofstream(errors_, std::ios::app) << problem.what() << "\n";
        code = exit_code(problem);
      }
      ::_exit(code);
    }
    pids_.push_back(pid);
    return pid;
  }
  // Waits for the process; returns its status.
  int wait(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    std::erase(pids_, pid);
    return status;
  }
  void write_errors_to(const std::filesystem::path& file) { errors_ = file; }

  // Forks a lighthouse; returns its port.
  int lighthouse(const net::Secret& secret) {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    lighthouse_ = fork([&] {
      const LighthouseServer server(secret, {"127.0.0.1", 0});
      const int port = server.port();
      if (::write(ends[1], &port, sizeof(port)) != sizeof(port)) return;
      for (;;) ::pause();
    });
    int port = 0;
    if (::read(ends[0], &port, sizeof(port)) != sizeof(port)) throw std::runtime_error("no port");
    ::close(ends[0]);
    ::close(ends[1]);
    return port;
  }
  pid_t lighthouse_process() const { return lighthouse_; }

 private:
  std::vector<pid_t> pids_;
  pid_t lighthouse_ = 0;
  std::filesystem::path errors_ = "/dev/null";
};

}  // namespace troika::quorum
