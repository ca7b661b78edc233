#include "tests/parallel/pipeline_fault_rank.h"

#include <signal.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/comm/fault_news.h"
#include "troika/base/clock.h"
#include "troika/base/error.h"
#include "troika/base/text.h"
#include "troika/comm/world/world.h"
#include "troika/compat/torch.h"
#include "troika/parallel/pipeline/pipeline.h"

namespace troika::parallel {
namespace {

using comm::FaultPlan;
using comm::FaultReports;

constexpr int kMicroBatches = 8;
// The faulty pass is one of micro-batch 3 in the second step. Every rank has left the barrier by
// then, because stage 3 must have ended passes of the first step.
constexpr int kFaultyPass = kMicroBatches + 3;

// Misbehaves, or makes the victim misbehave, during the passes of this rank's stage.
class Fault {
 public:
  Fault(const FaultPlan& plan, const FaultReports& reports, int rank, std::vector<pid_t> pids)
      : plan_(plan), reports_(reports), rank_(rank), pids_(std::move(pids)) {}

  void in_forward() {
    const bool is_faulty = forward_passes_++ == kFaultyPass;
    if (is_faulty && plan_.when == "forward" && rank_ == plan_.victim) misbehave();
    // The next stage has nothing to do before this pass has ended.
    if (is_faulty && plan_.when == "receive" && rank_ == plan_.victim - 1) signal();
  }
  void in_backward() {
    const bool is_faulty = backward_passes_++ == kFaultyPass;
    if (is_faulty && plan_.when == "backward" && rank_ == plan_.victim) misbehave();
    if (is_faulty && plan_.when == "receive" && plan_.victim == 0 && rank_ == 1) signal();
  }

 private:
  void misbehave() const {
    if (plan_.fault == "throw") throw std::runtime_error("the loss is a moose");
    comm::misbehave(plan_, reports_);
  }
  void signal() const {
    ::kill(pids_[static_cast<size_t>(plan_.victim)], plan_.fault == "kill" ? SIGKILL : SIGSTOP);
  }

  const FaultPlan& plan_;
  const FaultReports& reports_;
  const int rank_;
  const std::vector<pid_t> pids_;
  int forward_passes_ = 0, backward_passes_ = 0;
};

std::shared_ptr<nn::Model> make_model(Fault& fault, int own_stage) {
  auto model = std::make_shared<nn::Model>();
  for (int stage = 0; stage < kFaultStages; ++stage) {
    const auto name = "layer." + std::to_string(stage);
    auto layer = model->place(name, torch::nn::Linear(4, 4));
    model->add_block({name, {name}, {}, [=, &fault](const at::Tensor& x) mutable {
                        if (stage != own_stage) return layer->forward(x);
                        fault.in_forward();
                        auto output = layer->forward(x);
                        output.register_hook([&fault](const at::Tensor& gradient) {
                          fault.in_backward();
                          return gradient;
                        });
                        return output;
                      }});
  }
  return model;
}

std::vector<pid_t> share_pids(const comm::Group& world) {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < world.size(); ++rank) {
    pids.push_back(std::stoi(world.broadcast_text(std::to_string(::getpid()), rank)));
  }
  return pids;
}

struct Outcome {
  double milliseconds = 0;
  int kind = 0;
  std::string what = "done";
};

Outcome run(const FaultPlan& plan, const FaultReports& reports) {
  const bool waits_long = plan.fault == "kill" || plan.fault == "throw";
  Stopwatch watch;
  try {
    const auto world =
        comm::world({.backend = plan.backend,
                     .group = {.timeout = waits_long ? Milliseconds(60'000) : Milliseconds(1500),
                               .flight_record = plan.folder / "record"}});
    Fault fault(plan, reports, world.rank(), share_pids(world));
    const comm::MeshGroups groups(world, layout::Mesh(layout::Axis::pipeline, kFaultStages));
    Pipeline pipeline(make_model(fault, world.rank()), groups,
                      {.schedule = "1f1b", .micro_batches = kMicroBatches});
    const auto batch = at::ones({kMicroBatches, 4});
    const auto loss = [](const at::Tensor& x, const at::Tensor&) { return x.mean(); };
    if (plan.when == "receive" && world.rank() == plan.victim) {
      reports.tell(0, 0, Clock::now(), "victim");
    }
    world.barrier();
    pipeline.run(batch, batch, loss);
    watch.restart();
    pipeline.run(batch, batch, loss);
    return {watch.seconds() * 1000};
  } catch (const Error& error) {
    return {watch.seconds() * 1000, static_cast<int>(error.kind()), error.what()};
  } catch (const std::exception& error) {
    return {watch.seconds() * 1000, -1, error.what()};
  }
}

}  // namespace

int run_pipeline_fault_rank(const FaultPlan& plan) {
  const FaultReports reports(plan.folder, cluster::discover().rank);
  const auto [milliseconds, kind, what] = run(plan, reports);
  reports.tell(milliseconds, kind, Clock::now(), what);
  return kind == 0 ? 0 : 1;
}

}  // namespace troika::parallel
