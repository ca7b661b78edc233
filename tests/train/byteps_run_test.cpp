// Runs with strategy byteps, compared with one process.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <stdlib.h>

#include <cmath>

#include "tests/support/errors.h"
#include "tests/train/fitted_course.h"
#include "tests/train/waves.h"
#include "troika/base/config.h"
#include "troika/layout/plan.h"
#include "troika/train/options/resolve_plan.h"
#include "troika/train/profile/automatic_plan.h"

namespace troika::train {
namespace {

class BytePsRun : public CourseTest {
 protected:
  BytePsRun() { options_.optimizer.name = "adamw"; }

  TrainOptions byteps(std::vector<std::string> changes = {}) const {
    auto options = options_;
    auto table = make_table(options);
    changes.insert(changes.begin(), "trainer.strategy=byteps");
    for (const auto& change : changes) table.set_argument("--" + change);
    return options;
  }

  static FittedCourse fit(const TrainOptions& options, int ranks) {
    return fit(options, std::vector<int>(static_cast<size_t>(ranks), 0));
  }

  // Ranks on these machines, which are all this one.
  template <typename OwnTask = Task>
  static FittedCourse fit(const TrainOptions& options, const std::vector<int>& machines) {
    const auto make_task = [] {
      auto net = torch::nn::Sequential(torch::nn::Linear(3, 16), torch::nn::Tanh(),
                                       torch::nn::Linear(16, 2));
      fill_with_waves(*net);
      return std::make_shared<OwnTask>(nn::from_sequential(net));
    };
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    const auto course = fit_course(options, machines, make_task, Waves());
    ::unsetenv("MASTER_ADDR");
    return course;
  }
};

TEST_F(BytePsRun, EqualsOneProcess) {
  options_.schedule.name = "cosine";
  options_.trainer.gradient_clip_val = 0.05;
  const auto oracle = fit(options_, 1);
  for (const int ranks : {1, 2, 4}) {
    const auto course =
        fit(byteps({"byteps.partition_bytes=128", "byteps.credit_bytes=300"}), ranks);
    EXPECT_EQ(course.summary.steps, 12);
    EXPECT_LT(distance(course, oracle), 1e-10) << ranks;
    EXPECT_NEAR(course.summary.validation_loss, oracle.summary.validation_loss, 1e-6);
  }
}

// Ranks of one machine sum their gradients first. Codecs are between machines, and checkpoints have
// what they left out.
TEST_F(BytePsRun, EqualsOneProcessOnSeveralMachines) {
  const std::vector<int> machines{0, 0, 1, 1};
  const auto oracle = fit(options_, 1);
  const std::vector<std::string> cut{"byteps.partition_bytes=128", "comm.bucket_megabytes=0.0001",
                                     "comm.first_bucket_megabytes=0.0001"};
  const auto with = [&](std::vector<std::string> changes) {
    changes.insert(changes.end(), cut.begin(), cut.end());
    return byteps(changes);
  };
  const auto course = fit(with({}), machines);
  EXPECT_LT(distance(course, oracle), 1e-10);
  EXPECT_EQ(distance(fit(with({"byteps.cross_barrier=true"}), machines), course), 0);
  EXPECT_LT(distance(fit(with({"byteps.local_sums=none"}), machines), oracle), 1e-10);
  const auto halves = fit(with({"byteps.local_sums=bf16"}), machines);
  EXPECT_LT(distance(halves, oracle), 0.1);
  EXPECT_GT(distance(halves, oracle), 1e-8) << "bits were lost";

  options_.schedule.name = "step";
  options_.schedule.step_size = 5;
  options_.checkpoint.every_n_train_steps = 5;
  options_.checkpoint.every_n_epochs = 0;
  auto options = with({"ddp.hook=topk", "ddp.topk_density=0.3", "byteps.momentum=0.5"});
  const auto whole = fit(options, machines);
  options.trainer.max_steps = 5;
  fit(options, machines);
  options.trainer.max_steps = -1;
  options.trainer.ckpt_path = "last";
  EXPECT_EQ(distance(fit(options, machines), whole), 0);
  options.trainer.max_epochs = 3;
  EXPECT_EQ(fit(options, std::vector<int>{0, 1}).summary.steps, 18) << "rank 1 has none";
}

// As with ddp, whose codec also rounds each gradient and each mean to 16 bits.
TEST_F(BytePsRun, HalfOfTheBytesTrainAlmostAlike) {
  const auto oracle = fit(options_, 1);
  const auto halves = fit(byteps({"ddp.hook=fp16"}), 2);
  EXPECT_LT(distance(halves, oracle), 0.05);
  EXPECT_GT(distance(halves, oracle), 1e-8) << "bits were lost";
}

// BytePS's suspend() and resume() with another number of workers.
TEST_F(BytePsRun, ResumesWithAnotherNumberOfRanks) {
  options_.schedule.name = "step";
  options_.schedule.step_size = 5;
  options_.checkpoint.every_n_train_steps = 4;
  options_.checkpoint.every_n_epochs = 0;
  options_.trainer.max_epochs = 3;
  const auto oracle = fit(options_, 1);
  using Machines = std::vector<int>;  // of ranks
  for (const auto& [first, second] :
       {std::pair(Machines{0, 0}, Machines{0, 1, 1, 0}), {{0, 1, 2, 2}, {0}}}) {
    auto options = byteps({fmt::format("run.name=from-{}", first.size())});
    options.trainer.max_steps = 8;
    fit(options, first);
    options.trainer.max_steps = -1;
    options.trainer.ckpt_path = "last";
    const auto course = fit(options, second);
    EXPECT_EQ(course.summary.steps, 18);
    EXPECT_LT(distance(course, oracle), 1e-10) << first.size();
  }
}

// With error feedback, steps of SGD with a part of the gradients end near those with all of them.
TEST_F(BytePsRun, CodecsWithFeedbackConverge) {
  options_.trainer.max_epochs = 10;
  options_.optimizer.name = "sgd";
  options_.optimizer.momentum = 0;
  const auto oracle = fit(options_, 1);
  const auto far = [&](std::vector<std::string> changes) {
    return distance(fit(byteps(std::move(changes)), 2), oracle);
  };
  EXPECT_LT(far({"ddp.hook=int8"}), 0.01);
  const double with = far({"ddp.hook=topk", "ddp.topk_density=0.2"});
  const double without = far({"ddp.hook=topk", "ddp.topk_density=0.2", "ddp.error_feedback=false"});
  EXPECT_LT(with, 0.6 * without) << without;
}

// Its gradients grow as much as the learning rate of gamma 1 / 2 falls.
class GrowingTask : public Task {
 public:
  static constexpr int64_t kStepSize = 5;

  using Task::Task;
  at::Tensor training_step(const data::Batch& batch) override {
    const auto exponent = static_cast<double>(steps_++ / kStepSize);
    return Task::training_step(batch) * std::exp2(exponent);
  }

 private:
  int64_t steps_ = 0;
};

// Errors of ranks and of servers move parameters as far as they would have at their own step.
TEST_F(BytePsRun, ErrorsAreScaledWithTheLearningRate) {
  options_.optimizer.name = "sgd";
  options_.optimizer.momentum = 0;
  options_.schedule.name = "constant";
  auto options = byteps({"ddp.hook=topk", "ddp.topk_density=0.3"});
  const auto constant = fit(options, {0, 0});
  EXPECT_EQ(constant.summary.steps, 12);
  options.schedule.name = "step";
  options.schedule.step_size = GrowingTask::kStepSize;
  options.schedule.gamma = 0.5;
  EXPECT_GT(distance(fit(options, {0, 0}), constant), 1e-6);
  EXPECT_EQ(distance(fit<GrowingTask>(options, {0, 0}), constant), 0);
}

// One process with the asynchronous mode is one without servers; several converge, and all end
// with the same weights.
TEST_F(BytePsRun, AsynchronousRanksConverge) {
  options_.trainer.max_epochs = 20;
  options_.optimizer.name = "sgd";
  const auto oracle = fit(options_, 1);
  EXPECT_EQ(distance(fit(byteps({"byteps.asynchronous=true"}), 1), oracle), 0);
  const auto two = fit(byteps({"byteps.asynchronous=true"}), 2);
  EXPECT_EQ(two.summary.steps, oracle.summary.steps);
  EXPECT_LT(two.summary.validation_loss, oracle.summary.validation_loss + 0.05);
  // A run resumes from what its servers kept, with other ranks.
  auto options = byteps({"byteps.asynchronous=true", "run.name=half"});
  options.trainer.max_epochs = 10;
  const auto half = fit(options, 2);
  options.trainer.max_epochs = 20;
  options.trainer.ckpt_path = "last";
  const auto resumed = fit(options, 4);
  EXPECT_LT(resumed.summary.validation_loss, half.summary.validation_loss);
}

// Checkpoints, validations and gradients of several micro-batches are those of runs with a barrier.
TEST_F(BytePsRun, RunsWithoutABarrierHaveTheSameBits) {
  options_.schedule.name = "step";
  options_.schedule.step_size = 5;
  options_.checkpoint.every_n_train_steps = 5;
  options_.checkpoint.every_n_epochs = 0;
  options_.trainer.val_check_interval = "2";
  for (const auto& [optimizer, micro_batches] :
       {std::pair("sgd", 2), {"adamw", 1}, {"lamb", 1}, {"adamw_8bit", 1}}) {
    SCOPED_TRACE(optimizer);
    std::vector<std::string> same{fmt::format("optim.name={}", optimizer),
                                  "comm.bucket_megabytes=0.0001",
                                  "comm.first_bucket_megabytes=0.0001",
                                  "byteps.partition_bytes=128",
                                  "trainer.gradient_clip_val=0.01",
                                  "trainer.gradient_clip_algorithm=value",
                                  fmt::format("trainer.accumulate_grad_batches={}", micro_batches)};
    const auto oracle = fit(byteps(same), 2);
    same.push_back("byteps.cross_barrier=true");
    const auto crossed = fit(byteps(same), 2);
    EXPECT_EQ(distance(crossed, oracle), 0);
    EXPECT_EQ(crossed.summary.validation_loss, oracle.summary.validation_loss);
    if (optimizer != std::string("adamw")) continue;
    auto options = byteps(same);
    options.trainer.max_steps = 5;
    fit(options, 2);
    options.trainer.max_steps = -1;
    options.trainer.ckpt_path = "last";
    EXPECT_EQ(distance(fit(options, 2), oracle), 0) << "also after a stop";
  }
}

TEST_F(BytePsRun, RefusesWhatNeedsAllGradientsAtOnce) {
  const auto message = [](const std::string& got) {
    return "[train] byteps.cross_barrier steps parameters before all gradients are there; got " +
           got +
           ", expected none of clipping by norm, loss scaling, masters of weights, ema, "
           "checkpoint.on_exception and statistics (byteps.cross_barrier false takes it)";
  };
  for (const auto& [change, got] : std::vector<std::pair<std::string, std::string>>{
           {"trainer.gradient_clip_val=0.5", "trainer.gradient_clip_algorithm norm"},
           {"trainer.precision=16-mixed", "trainer.precision 16-mixed"},
           {"trainer.precision=bf16-true", "trainer.precision bf16-true"},
           {"ema.enabled=true", "ema.enabled true"},
           {"checkpoint.on_exception=true", "checkpoint.on_exception true"},
           {"statistics.every_n_steps=2", "statistics.every_n_steps 2"}}) {
    auto options = byteps({"byteps.cross_barrier=true", change});
    EXPECT_ERROR(fit(options, 2), ErrorKind::usage, message(got));
    options.trainer.plan = resolve_plan(options, layout::Cluster::uniform(1, 2)).text();
    EXPECT_ERROR(fit(options, 2), ErrorKind::usage, message(got));
  }
}

// Checkpoints have the parts of gradients and of means that codecs have left out.
TEST_F(BytePsRun, ResumesWithTheErrorsOfCodecs) {
  options_.schedule.name = "step";  // the first step after the checkpoint has another rate
  options_.schedule.step_size = 5;
  options_.optimizer.name = "sgd";
  options_.optimizer.momentum = 0;
  options_.checkpoint.every_n_train_steps = 5;
  options_.checkpoint.every_n_epochs = 0;
  for (const std::string hook : {"topk", "onebit", "natural"}) {
    SCOPED_TRACE(hook);
    auto options = byteps({"ddp.hook=" + hook, "ddp.topk_density=0.3", "run.name=" + hook,
                           "byteps.partition_bytes=128", "comm.bucket_megabytes=0.0002"});
    if (hook == "natural") {
      options.byteps.momentum = 0.5;
      options.byteps.dither_norm = "l2";
    }
    const auto whole = fit(options, 2);
    EXPECT_EQ(whole.summary.steps, 12);
    options.trainer.max_steps = 5;
    fit(options, 2);
    options.trainer.max_steps = -1;
    options.trainer.ckpt_path = "last";
    EXPECT_EQ(distance(fit(options, 2), whole), 0);
    if (hook != "topk") continue;
    options.trainer.max_epochs = 3;
    EXPECT_EQ(fit(options, 4).summary.steps, 18) << "two ranks have none";
  }
}

TEST_F(BytePsRun, RefusesWhatSummationServersCannotDo) {
  EXPECT_ERROR(fit(byteps({"server.replicas=1"}), 1), ErrorKind::usage,
               "[train] summation servers keep no parameters; got options of server besides "
               "servers and limit_seconds, expected none, with strategy byteps (strategy "
               "parameter_server has them)");
  EXPECT_ERROR(fit(byteps({"server.servers=1"}), 1), ErrorKind::usage,
               "[parallel] summation servers on spare machines are processes of their own; got "
               "server.servers 1, and no launch of servers, expected server.servers 0: one in each "
               "rank's process (troika launch --servers K --workers N starts them)");
  EXPECT_ERROR(fit(byteps({"ddp.hook=powersgd"}), 1), ErrorKind::usage,
               "[train] summation servers have not all codecs; got ddp.hook powersgd, expected "
               "none, fp16, int8, topk, onebit, randomk, dither or natural");
  for (const auto& [change, got] : std::vector<std::pair<std::string, std::string>>{
           {"byteps.cross_barrier=true",
            "byteps.cross_barrier true, byteps.momentum 0, byteps.local_sums plain"},
           {"byteps.momentum=0.5",
            "byteps.cross_barrier false, byteps.momentum 0.5, byteps.local_sums plain"},
           {"byteps.local_sums=fp16",
            "byteps.cross_barrier false, byteps.momentum 0, byteps.local_sums fp16"}}) {
    EXPECT_ERROR(fit(byteps({"byteps.asynchronous=true", change}), 2), ErrorKind::usage,
                 "[train] byteps.asynchronous sends whole parameters after each step; got " + got +
                     " and ddp.hook none, expected false, 0, plain and none");
  }
  EXPECT_ERROR(fit(byteps({"byteps.momentum=0.5", "optim.name=sgd"}), 2), ErrorKind::usage,
               "[train] byteps.momentum takes the place of the optimizer's; got byteps.momentum "
               "0.5 and optim.momentum 0.9 of sgd, expected at most one of them above 0");
  EXPECT_ERROR(fit(byteps({"byteps.momentum=0.5", "trainer.precision=16-mixed"}), 2),
               ErrorKind::usage,
               "[train] byteps.momentum adds up gradients of one scale; got trainer.precision "
               "16-mixed, expected 32, 64, bf16-mixed or bf16-true");
  EXPECT_ERROR(
      fit(byteps({"byteps.dither_norm=l2", "ddp.hook=topk"}), 2), ErrorKind::usage,
      "[train] byteps.dither_norm is for the codecs dither and natural; got l2 and ddp.hook "
      "topk, expected max, or ddp.hook dither or natural");
  EXPECT_ERROR(fit(byteps({"byteps.momentum=0.5"}), 1), ErrorKind::usage,
               "[train] byteps.momentum needs gradients that are sent; got 0.5 and one process, "
               "which sends none, expected 0, or several processes (optim.nesterov and "
               "optim.momentum do the same)");
  EXPECT_ERROR(byteps({"byteps.partition_bytes=63"}), ErrorKind::usage,
               "[config] byteps.partition_bytes; got 63, expected an integer >= 64");
  const layout::Plan plan{.exchange = {.method = layout::ExchangeMethod::summation}};
  auto other = plan;
  other.exchange.method = layout::ExchangeMethod::all_reduce;
  other.exchange.summation.credit_bytes = 1;
  EXPECT_ERROR(other.verify(), ErrorKind::usage,
               "[layout] values of summation; got exchange.method all_reduce, expected "
               "exchange.method summation");
  auto cut = plan;
  cut.mesh = layout::Mesh::parse("data=2 tensor=2", 4);
  EXPECT_ERROR(cut.verify(), ErrorKind::usage,
               "[layout] exchange.method summation; got mesh.axes data=2 tensor=2 and one_stage, "
               "expected a data axis only, and schedule.name one_stage");
}

// A plan that is found would leave these options out.
TEST_F(BytePsRun, ASearchRefusesWhatItDoesNotKnow) {
  comm::local::run(2, [&](const comm::Group& group) {
    for (const auto& [change, got] : std::vector<std::pair<std::string, std::string>>{
             {"byteps.momentum=0.5", "byteps.momentum 0.5"},
             {"byteps.local_sums=none", "byteps.local_sums none"}}) {
      EXPECT_ERROR(find_plan(byteps({change}), Waves(), group), ErrorKind::usage,
                   "[train] a feature that the search for a plan does not know; got " + got +
                       ", expected an exchange of all gradients in each step, without it (leave "
                       "--plan auto out, or choose a strategy that averages gradients)");
    }
  });
}

}  // namespace
}  // namespace troika::train
