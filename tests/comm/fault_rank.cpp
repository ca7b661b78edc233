#include "tests/comm/fault_rank.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/comm/fault_news.h"
#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/text.h"
#include "troika/comm/edge.h"
#include "troika/comm/world/world.h"

namespace troika::comm {
namespace {

using Plan = FaultPlan;

// Elements of the lower and of the upper half.
constexpr int64_t kFew = 8;
constexpr int64_t kMany = 4096;

void call_halves(const Group& group, const Plan& plan) {
  const bool low = group.rank() < group.size() / 2;
  const bool reversed = plan.fault == "gather_reversed";
  const int64_t count = low != reversed ? kFew : kMany;
  const int root = plan.victim;
  const CallOptions how{.label = "step"};
  const auto tensor = at::ones({count});
  if (plan.fault == "broadcast") group.broadcast(tensor, root, how);
  if (plan.fault == "reduce") group.reduce(tensor, root, ReduceOp::sum, how);
  if (plan.fault == "root") group.broadcast(at::ones({kFew}), low ? root : group.size() - 1, how);
  if (plan.fault == "gather" || reversed) {
    const auto whole = group.rank() == root ? at::zeros({count * group.size()}) : at::Tensor();
    group.gather(whole, tensor, root, how);
  }
  if (plan.fault == "scatter") {
    const auto whole = group.rank() == root ? at::zeros({count * group.size()}) : at::Tensor();
    group.scatter(tensor, whole, root, how);
  }
  if (plan.fault == "rabenseifner") {
    group.all_reduce(tensor, ReduceOp::sum,
                     {.label = "step", .algorithm = Algorithm::rabenseifner});
  }
  if (plan.fault == "algorithm") {
    const auto algorithm = low ? Algorithm::ring : Algorithm::recursive_doubling;
    group.all_reduce(at::ones({kFew}), ReduceOp::sum, {.label = "step", .algorithm = algorithm});
  }
  if (plan.fault == "empty") group.all_reduce(at::ones({low ? 0 : kFew}), ReduceOp::sum, how);
}

void call_step(const Group& group, const Plan& plan) {
  const bool odd = group.rank() == plan.victim;
  if (plan.when == "halves") return call_halves(group, plan);
  if (odd && plan.fault == "operation") return (void)group.broadcast(at::ones({8}));
  const int64_t count = odd && plan.fault == "count" ? 9 : 8;
  const auto type = odd && plan.fault == "dtype" ? at::kDouble : at::kFloat;
  group.all_reduce(at::ones({count}, type), ReduceOp::sum, {.label = "step"});
}

// The victim destroys a group that the next rank still has, and the group's memory is used again.
void drop(const Group& group, const Plan& plan) {
  const int next = (plan.victim + 1) % group.size();
  auto part = group.split(0);
  const auto tensor = at::ones({1000});
  if (group.rank() == plan.victim) part->send(tensor, next).wait();
  if (group.rank() == next) part->receive(tensor, plan.victim).wait();
  part->barrier();
  if (group.rank() == plan.victim) part.reset();
  group.barrier();
  std::vector<at::Tensor> reused;
  for (int i = 0; i < 8; ++i) {
    reused.push_back(group.allocate({1 << 18}, at::kFloat));
    reused.back().fill_(3.14e8F);
  }
  group.barrier();
  const auto soon = Deadline::after(Milliseconds(300));
  if (group.rank() == next) part->receive(tensor, plan.victim).wait(soon);
}

// The victim sends the next rank more data than this rank expects.
void send_too_much(const Group& group, const Plan& plan) {
  const int next = (plan.victim + 1) % group.size();
  const int64_t count = plan.fault == "message" ? kFew + 1 : 100'000;
  if (group.rank() == plan.victim) group.send(at::ones({count}), next);
  if (group.rank() == next) group.receive(at::ones({kFew}), plan.victim).wait();
}

// The other ranks wait for a tensor from the victim's edges or, with `when` "edge_full", until the
// victim receives from their full edges. Each has received one tensor before.
void work_over_edges(const Group& group, const Plan& plan, const FaultReports& news,
                     at::Tensor& tensor, Stopwatch& watch) {
  const EdgeOptions how{.depth = 2, .label = "step"};
  const bool is_victim = group.rank() == plan.victim;
  const bool victim_sends = plan.when == "edge";
  tensor = at::ones({1 << 18});
  for (int r = 0; is_victim && r < group.size(); ++r) {
    if (r == group.rank()) continue;
    if (victim_sends) group.edge_to(r, 5, how).send(tensor).wait();
    if (!victim_sends) group.edge_from(r, 5, how).receive();
  }
  // The victim misbehaves when all others have left the barrier.
  const auto left = at::ones({kFew});
  if (is_victim) {
    group.barrier({.label = "ready"});
    for (int r = 0; r < group.size(); ++r) {
      if (r != group.rank()) group.receive(left, r, 6).wait();
    }
    return misbehave(plan, news);
  }
  if (victim_sends) {
    const auto edge = group.edge_from(plan.victim, 5, how);
    edge.receive();
    group.barrier({.label = "ready"});
    group.send(left, plan.victim, 6);
    watch.restart();
    edge.receive();
    return;
  }
  const auto edge = group.edge_to(plan.victim, 5, how);
  edge.send(tensor);
  group.barrier({.label = "ready"});
  group.send(left, plan.victim, 6);
  watch.restart();
  for (int i = 0; i < 8; ++i) edge.send(tensor);
}

// Rank 0 and rank 1 do not agree about the edge between them; the others wait in "next".
void mismatch_edges(const Group& group, const Plan& plan) {
  if (group.rank() == 0) {
    const int tag = plan.fault == "edge_tag" ? 6 : 5;
    const auto edge = group.edge_to(1, tag, {.depth = plan.fault == "edge_depth" ? 3 : 2});
    edge.send(at::ones({2, 4}));
  }
  // No other rank reaches a deadline.
  if (plan.fault == "edge_tag" && group.rank() != 1) wait_for_permission(plan);
  if (group.rank() != 1) return;
  const auto edge = group.edge_from(0, 5, {.label = "step"});
  if (plan.fault == "edge_shape") return edge.receive_into(at::ones({4, 2}));
  if (plan.fault == "edge_dtype") return edge.receive_into(at::ones({2, 4}, at::kDouble));
  edge.receive();
}

// Memory whose second half kills the process that reads or writes it.
at::Tensor deadly_bytes(size_t bytes) {
  auto* const data = static_cast<char*>(
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (data == MAP_FAILED || ::mprotect(data + bytes / 2, bytes / 2, PROT_NONE) != 0) ::_exit(9);
  ::signal(SIGSEGV, [](int) { ::raise(SIGKILL); });
  return at::from_blob(data, {static_cast<int64_t>(bytes)}, at::kByte);
}

// The victim dies in the middle of a copy; the next rank is the other end of the message.
void die_in_copy(const Group& group, const Plan& plan, const FaultReports& news, Stopwatch& watch) {
  constexpr size_t kLong = size_t{8} << 20;
  const bool victim_sends = plan.when == "copy_from";
  const bool is_victim = group.rank() == plan.victim;
  const int next = (plan.victim + 1) % group.size();
  const int other = is_victim ? next : plan.victim;
  watch.restart();
  if (is_victim) news.tell(0, 0, Clock::now(), "victim");
  if (is_victim || group.rank() == next) {
    const auto bytes = is_victim ? deadly_bytes(kLong) : at::ones({kLong}, at::kByte);
    const auto work = is_victim == victim_sends ? group.send(bytes, other)
                                                : group.receive(bytes, other, 0, "step");
    work.wait();
  }
  group.barrier({.label = "next"});
}

// `tensor` outlives the call, because freeing it takes milliseconds that must not be part of the
// report.
void work(const Group& group, const Plan& plan, const FaultReports& news, at::Tensor& tensor,
          Stopwatch& watch) {
  const bool victim = group.rank() == plan.victim;
  if (victim && plan.when == "before") misbehave(plan, news);
  if (plan.when == "receive") {
    tensor = at::ones({kFew});
    const auto ready = at::ones({kFew});
    for (int r = 0; victim && r < group.size(); ++r) {
      if (r != plan.victim) group.receive(ready, r, 6).wait();
    }
    if (victim) return misbehave(plan, news);
    const auto arriving = group.receive(tensor, plan.victim, 5, "step");
    group.send(ready, plan.victim, 6);
    watch.restart();
    return arriving.wait();
  }
  if (plan.when.starts_with("copy")) return die_in_copy(group, plan, news, watch);
  if (plan.when.starts_with("edge")) return work_over_edges(group, plan, news, tensor, watch);
  if (plan.when == "during") {
    tensor = at::ones({16 << 20});
    group.barrier({.label = "filled"});
    watch.restart();
    const auto step = group.all_reduce(tensor, ReduceOp::sum, {.label = "step", .async_op = true});
    if (plan.fault == "kill_unserved" && group.rank() == 0) {
      news.tell(0, 0, Clock::now(), "victim");
      ::raise(SIGSTOP);
    }
    if (victim) misbehave(plan, news);
    return step.wait();
  }
  watch.restart();
  if (plan.fault == "drop") drop(group, plan);
  if (plan.fault.starts_with("message")) send_too_much(group, plan);
  if (plan.fault.starts_with("edge")) mismatch_edges(group, plan);
  if (plan.fault == "leave" && plan.when == "before" && victim) return;
  call_step(group, plan);
  if (plan.fault == "leave" && victim) return;
  if (victim && plan.when == "after") misbehave(plan, news);
  if (plan.when != "halves") watch.restart();
  group.all_reduce(at::ones({200'000}), ReduceOp::sum, {.label = "next"});
}

// Descriptors and mappings of shared memory that this process still has.
std::vector<std::string> shared_memory_left() {
  std::vector<std::string> left;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(file.path(), gone).string();
    if (target.find("memfd:troika") != std::string::npos) left.push_back(target);
  }
  for (const auto& line : split(read_file("/proc/self/maps"), '\n')) {
    if (line.find("memfd:troika") != std::string::npos) left.push_back(line);
  }
  return left;
}

struct Outcome {
  double milliseconds = 0;
  int kind = 0;
  std::string what = "done";
  Clock::time_point when = Clock::now();
};

Outcome run(const Plan& plan, const FaultReports& news) {
  Stopwatch watch;
  // The time when work() ended. Measured before the group is destroyed, because rank 0's server
  // then waits for stopped ranks.
  double milliseconds = 0;
  Clock::time_point when;
  try {
    const bool waits_long =
        plan.fault != "stop" && plan.fault != "delay" && plan.fault != "edge_tag";
    const Group group =
        world({.backend = plan.backend,
               .group = {.timeout = waits_long ? Milliseconds(60'000) : Milliseconds(1500),
                         .flight_record = plan.folder / "record"}});
    group.barrier({.label = "start"});
    at::Tensor tensor;
    try {
      work(group, plan, news, tensor, watch);
    } catch (...) {
      milliseconds = watch.seconds() * 1000;
      when = Clock::now();
      throw;
    }
    return {watch.seconds() * 1000};
  } catch (const Error& error) {
    return {milliseconds, static_cast<int>(error.kind()), error.what(), when};
  }
}

}  // namespace

int run_fault_rank(const FaultPlan& plan) {
  const FaultReports news(plan.folder, cluster::discover().rank);
  auto outcome = run(plan, news);
  for (const auto& left : shared_memory_left()) outcome.what += " left behind: " + left;
  news.tell(outcome.milliseconds, outcome.kind, outcome.when, outcome.what);
  return outcome.kind == 0 ? 0 : 1;
}

}  // namespace troika::comm
