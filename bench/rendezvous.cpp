// Measures the control connection when many ranks do the same at the same time: gather, ask for a
// diagnosis, and leave. Rank 0 is a separate process; all other ranks are threads of this process.
// Prints a record (troika/base/benchmark_record.h): for each phase, rank 0's processor time, the
// processor time of all other ranks together and the elapsed seconds; and the number of descriptors
// that rank 0 holds. The arguments are `ranks` (default 1024) and the number of descriptors that
// rank 0 may open (default 256).
//
// The target: with 1024 ranks, each phase takes less than 2 s of processor time of all ranks
// together, and rank 0 always has fewer than 1024 descriptors.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <thread>
#include <vector>

#include "troika/base/benchmark_record.h"
#include "troika/cluster/discovery/port.h"
#include "troika/cluster/discovery/run_secret.h"
#include "troika/cluster/rendezvous/rendezvous.h"
#include "troika/net/descriptor.h"

namespace {

using namespace troika;
using cluster::Rendezvous;

constexpr Milliseconds kPatience{120'000};
// The time for which `comm` waits for a diagnosis.
constexpr Milliseconds kAnswerTime{800};
constexpr size_t kAnswerSize = 180;

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int64_t open_descriptors() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return std::distance(begin(files), end(files)) - 1;  // without the one that lists them
}

struct Phase {
  double processor = 0, seconds = 0;
};

class Meter {
 public:
  Phase lap() {
    const double now = processor_seconds();
    const Phase phase{now - start_, watch_.seconds()};
    start_ = now;
    watch_.restart();
    return phase;
  }

 private:
  double start_ = processor_seconds();
  Stopwatch watch_;
};

cluster::Environment member(int rank, int ranks, int port) {
  cluster::Environment environment;
  environment.rank = environment.local_rank = rank;
  environment.world_size = environment.local_world_size = ranks;
  environment.master_port = port;
  return environment;
}

int64_t ask(Rendezvous& meeting) {
  const auto answers = meeting.ask_all("1", Deadline::after(kAnswerTime));
  return std::ranges::count_if(answers.text, [](const auto& answer) { return answer.has_value(); });
}

// Waits for the other process at the same point, through the keys.
void exchange_keys(Rendezvous& meeting, const std::string& own, const std::string& other) {
  meeting.set(own, "");
  meeting.get(other, Deadline::after(kPatience));
}

struct Report {
  Phase gather, diagnose, leave;
  int64_t descriptors = 0, answers = 0;
};

Report run_rank_0(int ranks, int port, const cluster::RunSecret& secret) {
  Report report;
  Meter meter;
  const auto meeting = Rendezvous::join(member(0, ranks, port), secret, Deadline::after(kPatience));
  meeting->on_asked([](const std::string&) { return std::string(kAnswerSize, 'x'); });
  report.gather = meter.lap();
  report.descriptors = open_descriptors();
  exchange_keys(*meeting, "ready 0", "ready 1");
  meter.lap();
  report.answers = ask(*meeting);
  exchange_keys(*meeting, "asked 0", "asked 1");
  report.diagnose = meter.lap();
  meeting->leave("x", Deadline::after(kPatience));
  report.leave = meter.lap();
  return report;
}

Report run_others(int ranks, int port, const cluster::RunSecret& secret) {
  Report report;
  Meter meter;
  std::atomic<int64_t> answers = 0;
  std::barrier all(ranks - 1);
  std::vector<std::thread> threads;
  const auto act = [&](int rank) {
    const bool is_first = rank == 1;
    const auto meeting =
        Rendezvous::join(member(rank, ranks, port), secret, Deadline::after(kPatience));
    meeting->on_asked([](const std::string&) { return std::string(kAnswerSize, 'x'); });
    all.arrive_and_wait();
    if (is_first) report.gather = meter.lap();
    if (is_first) exchange_keys(*meeting, "ready 1", "ready 0");
    if (is_first) meter.lap();
    all.arrive_and_wait();
    answers += ask(*meeting);
    all.arrive_and_wait();
    if (is_first) exchange_keys(*meeting, "asked 1", "asked 0");
    if (is_first) report.diagnose = meter.lap();
    all.arrive_and_wait();
    meeting->leave(std::string(kAnswerSize, 'x'), Deadline::after(kPatience));
    all.arrive_and_wait();
    if (is_first) report.leave = meter.lap();
  };
  for (int rank = 1; rank < ranks; ++rank) threads.emplace_back(act, rank);
  for (auto& thread : threads) thread.join();
  report.answers = answers;
  return report;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 1024;
  const auto most = static_cast<rlim_t>(argc > 2 ? std::atoi(argv[2]) : 256);
  // Each rank of this process needs three descriptors: its connection, and two with which its
  // endpoint waits. A relay also has the other ends of its ranks' connections, and each rank has a
  // listener and another connection while it joins.
  net::allow_descriptors(6 * ranks + 256);
  const int port = cluster::free_port();
  const cluster::RunSecret secret{net::Secret::random(), "this benchmark"};
  const net::Pipe pipe = net::make_pipe();
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{most, most};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    const Report report = run_rank_0(ranks, port, secret);
    const auto size = static_cast<ssize_t>(sizeof(report));
    ::_exit(::write(pipe.write.get(), &report, sizeof(report)) == size ? 0 : 1);
  }
  const Report others = run_others(ranks, port, secret);
  Report host;
  if (::read(pipe.read.get(), &host, sizeof(host)) != static_cast<ssize_t>(sizeof(host))) return 1;
  ::waitpid(child, nullptr, 0);
  const double wanted = static_cast<double>(ranks) * ranks;
  BenchmarkRecord record("rendezvous", {});
  const auto add = [&](const std::string& what, const char* unit, Better better, double value) {
    record.add(fmt::format("{}, {} ranks", what, ranks), unit, better, {value});
  };
  add("descriptors of rank 0", "1", Better::lower, static_cast<double>(host.descriptors));
  add("answers that came", "ratio", Better::higher,
      static_cast<double>(host.answers + others.answers) / wanted);
  const auto add_phase = [&](const std::string& name, const Phase& of_host,
                             const Phase& of_others) {
    add(name + ", processor time of rank 0", "s", Better::lower, of_host.processor);
    add(name + ", processor time of the others", "s", Better::lower, of_others.processor);
    add(name + ", time", "s", Better::lower, std::max(of_host.seconds, of_others.seconds));
  };
  add_phase("gather", host.gather, others.gather);
  add_phase("diagnose", host.diagnose, others.diagnose);
  add_phase("leave", host.leave, others.leave);
  std::cout << record.to_json();
}
