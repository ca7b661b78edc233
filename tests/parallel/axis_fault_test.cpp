// A rank of a context axis, or of a tensor axis on which two forward passes take turns, also in a
// pipeline, is killed, hangs or throws: every other rank gets an error in time, which names that
// rank.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <stdexcept>
#include <string>

#include "tests/comm/fault_job.h"
#include "tests/comm/fault_news.h"
#include "troika/base/error.h"
#include "troika/cluster/discovery/environment.h"
#include "troika/comm/world/world.h"
#include "troika/compat/torch.h"
#include "troika/nn/linear.h"
#include "troika/parallel/context/ring_attention.h"
#include "troika/parallel/pipeline/pipeline.h"
#include "troika/parallel/tensor/axis_functions.h"
#include "troika/parallel/tensor/lanes.h"

namespace troika::parallel {
namespace {

using comm::FaultPlan;
using comm::FaultReports;

constexpr int kRanks = 4;

void attend(const comm::Group& ring, const std::function<void()>& in_backward) {
  const auto heads = [] { return at::ones({2, 8, 2, 4}).set_requires_grad(true); };
  const auto mixed = ring_attention({heads(), heads(), heads()}, 0, std::nullopt, ring);
  mixed.register_hook([&](const at::Tensor& gradient) {
    in_backward();
    return gradient;
  });
  mixed.sum().backward();
}

// Two passes with three sums each take turns. `in_lane` is called before each sum.
void take_turns(Lanes& lanes, const comm::Group& axis,
                const std::function<void(const std::string& lane, int sum)>& in_lane) {
  const auto pass = [&](const std::string& lane) {
    return [&, lane] {
      for (int sum = 0; sum < 3; ++sum) {
        in_lane(lane, sum);
        sum_over_axis(at::ones({8}), axis);
      }
    };
  };
  lanes.run(pass("first lane"), pass("second lane"));
}

// Trains two steps on stages whose layers two ranks compute. `in_forward` is called in the middle
// of each forward pass of this rank's stage.
void train_in_pairs(const comm::Group& world, const std::function<void()>& between,
                    const std::function<void()>& in_forward) {
  const comm::MeshGroups groups(world, layout::Mesh::parse("pipeline=2 tensor=2"));
  auto model = std::make_shared<nn::Model>();
  for (int stage = 0; stage < 2; ++stage) {
    const auto name = fmt::format("layer{}", stage);
    auto in = model->place(name + ".in", std::make_shared<nn::Linear>(4, 4));
    auto out = model->place(name + ".out", std::make_shared<nn::Linear>(4, 4));
    model->add_block({name, {name + ".in", name + ".out"}, {}, [=](const at::Tensor& x) mutable {
                        const at::Tensor hidden = in->forward(x);
                        if (world.rank() / 2 == stage) in_forward();
                        return out->forward(hidden);
                      }});
  }
  Pipeline pipeline(model, groups,
                    {.schedule = "1f1b",
                     .micro_batches = 4,
                     .split_table = {{"*.in", Split::column}, {"*.out", Split::row}},
                     .tensor_overlap = true});
  const auto batch = at::ones({4, 4});
  const auto loss = [](const at::Tensor& x, const at::Tensor&) { return x.mean(); };
  pipeline.run(batch, batch, loss);
  between();
  pipeline.run(batch, batch, loss);
}

// The victim misbehaves in the second of two runs: before its messages of the forward or of the
// backward pass of a ring, in the middle of a lane, or in a stage's second pass, which is that of a
// second lane. Reports how this rank's second run ended.
int run_rank(const FaultPlan& plan) {
  const int rank = cluster::discover().rank;
  const FaultReports reports(plan.folder, rank);
  const bool is_victim = rank == plan.victim;
  const auto fault_in = [&](const std::string& when) {
    if (!is_victim || plan.when != when) return;
    if (plan.fault == "throw") throw std::runtime_error("the loss is a moose");
    comm::misbehave(plan, reports);
  };
  Stopwatch watch;
  int kind = 0;
  std::string what = "done";
  try {
    const auto timeout = Milliseconds(plan.fault == "delay" ? 1500 : 60'000);
    const auto world =
        comm::world({.backend = plan.backend,
                     .group = {.timeout = timeout, .flight_record = plan.folder / "record"}});
    const auto begin_second = [&] {
      world.barrier();
      watch.restart();
    };
    if (plan.when == "second pass") {
      int passes = 0;
      train_in_pairs(world, begin_second, [&] {
        if (++passes == 4 + 2) fault_in("second pass");
      });
    } else if (plan.when.ends_with("lane")) {
      Lanes lanes(at::kCPU);
      take_turns(lanes, world, [](const std::string&, int) {});
      begin_second();
      take_turns(lanes, world, [&](const std::string& lane, int sum) {
        if (sum == 1) fault_in(lane);
      });
    } else {
      attend(world, [] {});
      begin_second();
      fault_in("forward");
      attend(world, [&] { fault_in("backward"); });
    }
  } catch (const Error& error) {
    kind = static_cast<int>(error.kind());
    what = error.what();
  } catch (const std::exception& error) {
    kind = -1;
    what = error.what();
  }
  reports.tell(watch.seconds() * 1000, kind, Clock::now(), what);
  return kind == 0 ? 0 : 1;
}

class AxisFaults : public testing::TestWithParam<const char*> {
 protected:
  // A rank that waits for `between`, which waits for the victim, may name that one, and be the
  // first to give up, so that all others name it, too. -1: there is none.
  static void expect_named(const std::string& fault, const std::string& when, int victim,
                           ErrorKind kind, const std::string& why, int between = -1) {
    SCOPED_TRACE(fmt::format("{} of rank {} in {}", fault, victim, when));
    comm::FaultJob job(GetParam(), fault, when, victim, kRanks, 1, run_rank);
    const int named = between < 0 ? victim : between;
    job.expect_others_told(victim, kRanks, kind, [&](int) -> testing::Matcher<const std::string&> {
      return testing::ContainsRegex(
          fmt::format("rank ({}|{})( = [a-z0-9, ]+)? {}", victim, named, why));
    });
  }
};

TEST_P(AxisFaults, AKilledRankIsNamedAtOnce) {
  expect_named("kill", "forward", 2, ErrorKind::peer, "is gone");
  expect_named("kill", "backward", 0, ErrorKind::peer, "is gone");
  expect_named("kill", "first lane", 0, ErrorKind::peer, "is gone");
  expect_named("kill", "second lane", 3, ErrorKind::peer, "is gone");
  expect_named("kill", "second pass", 1, ErrorKind::peer, "is gone");
}

TEST_P(AxisFaults, ARankThatHangsIsNamedAtTheDeadline) {
  const bool is_shm = GetParam() == std::string("shm");
  expect_named("delay", is_shm ? "forward" : "backward", is_shm ? 0 : 1, ErrorKind::timeout,
               "(has not|waits for no message)");
  expect_named("delay", "second lane", 1, ErrorKind::timeout, "(has not|waits for no message)");
  // Rank 1 waits for a message of rank 3, which waits for a sum with rank 2.
  expect_named("delay", "second pass", 2, ErrorKind::timeout, "(has not|waits for no message)", 3);
}

TEST_P(AxisFaults, ARankThatThrowsIsNamedAtOnce) {
  expect_named("throw", "forward", 0, ErrorKind::peer, "is gone: its program failed");
  expect_named("throw", "backward", 3, ErrorKind::peer, "is gone: its program failed");
  expect_named("throw", "first lane", 1, ErrorKind::peer, "is gone: its program failed");
  expect_named("throw", "second lane", 0, ErrorKind::peer, "is gone: its program failed");
  expect_named("throw", "second pass", 3, ErrorKind::peer, "is gone: its program failed");
}

INSTANTIATE_TEST_SUITE_P(Backends, AxisFaults, testing::Values("shm", "tcp"));

}  // namespace
}  // namespace troika::parallel
