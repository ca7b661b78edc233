// fault_rank BACKEND FAULT WHEN FOLDER: one rank of a job in which rank 1 misbehaves.
//
// Every rank calls a barrier "start" and two sums, "step" and "next". FAULT says what rank 1 does,
// WHEN at which of them: before "step", during it, or after it. What each rank got to know goes as
// one line into FOLDER/news, a pipe: rank, pid, milliseconds of the last call, kind of the error
// (0: none), message.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/comm/world.h"

namespace troika::comm {
namespace {

constexpr int kVictim = 1;

struct Plan {
  std::string fault;
  std::string when;
  std::filesystem::path folder;
};

class News {
 public:
  News(const std::filesystem::path& folder, int rank)
      : pipe_(::open((folder / "news").c_str(), O_WRONLY)), rank_(rank) {}

  void tell(double milliseconds, int kind, std::string what) const {
    std::replace(what.begin(), what.end(), '\n', ' ');
    const auto line =
        fmt::format("{} {} {:.0f} {} {}\n", rank_, ::getpid(), milliseconds, kind, what);
    if (::write(pipe_, line.data(), line.size()) < 0) ::_exit(9);
  }

 private:
  const int pipe_;
  const int rank_;
};

// Until the test has read what the others had to say, which it then writes.
void wait_for_permission(const Plan& plan) {
  const int permission = ::open((plan.folder / "permission").c_str(), O_RDONLY);
  char byte = 0;
  if (::read(permission, &byte, 1) < 0) ::_exit(9);
}

void misbehave(const Plan& plan, const News& news) {
  if (plan.fault == "kill" || plan.fault == "stop") {
    news.tell(0, 0, "victim");
    ::raise(plan.fault == "kill" ? SIGKILL : SIGSTOP);
  }
  if (plan.fault == "delay") {
    news.tell(0, 0, "victim");
    wait_for_permission(plan);
  }
}

void call_step(const Group& group, const Plan& plan) {
  const bool odd = group.rank() == kVictim;
  if (odd && plan.fault == "operation") return (void)group.broadcast(at::ones({8}));
  const int64_t count = odd && plan.fault == "count" ? 9 : 8;
  const auto type = odd && plan.fault == "dtype" ? at::kDouble : at::kFloat;
  group.all_reduce(at::ones({count}, type), ReduceOp::sum, {.label = "step"});
}

void work(const Group& group, const Plan& plan, const News& news, Stopwatch& watch) {
  const bool victim = group.rank() == kVictim;
  if (victim && plan.when == "before") misbehave(plan, news);
  if (plan.when == "during") {
    const auto tensor = at::ones({16 << 20});
    watch.restart();
    const auto step = group.all_reduce(tensor, ReduceOp::sum, {.label = "step", .async_op = true});
    if (victim) misbehave(plan, news);
    return step.wait();
  }
  watch.restart();
  if (plan.fault == "leave" && plan.when == "before" && victim) return;
  call_step(group, plan);
  if (plan.fault == "leave" && victim) return;
  if (victim && plan.when == "after") misbehave(plan, news);
  watch.restart();
  group.all_reduce(at::ones({200'000}), ReduceOp::sum, {.label = "next"});
}

}  // namespace
}  // namespace troika::comm

int main(int, char** argv) {
  using namespace troika;
  using namespace troika::comm;
  const Plan plan{argv[2], argv[3], argv[4]};
  const auto environment = cluster::discover();
  const News news(plan.folder, environment.rank);
  Stopwatch watch;
  try {
    const bool waits_long = plan.fault != "stop" && plan.fault != "delay";
    const Group group =
        world({.backend = argv[1],
               .group = {.timeout = waits_long ? Milliseconds(60'000) : Milliseconds(1500),
                         .flight_record = plan.folder / "record"}});
    group.barrier({.label = "start"});
    work(group, plan, news, watch);
    news.tell(watch.seconds() * 1000, 0, "done");
  } catch (const Error& error) {
    news.tell(watch.seconds() * 1000, static_cast<int>(error.kind()), error.what());
    return exit_code(error);
  }
  return 0;
}
