// Runs with strategy parameter_server, compared with one process and with ddp.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/train/fitted_course.h"
#include "tests/train/logged_rows.h"
#include "tests/train/waves.h"
#include "troika/base/config.h"

namespace troika::train {
namespace {

class ServedRun : public CourseTest {
 protected:
  ServedRun() {
    options_.trainer.log_every_n_steps = 2;
    options_.optimizer.weight_decay = 0.05;
    options_.optimizer.decay_vectors = false;
  }

  // Adds options such as "server.servers=3".
  TrainOptions with(const std::vector<std::string>& changes) const {
    auto options = options_;
    auto table = make_table(options);
    for (const auto& change : changes) table.set_argument("--" + change);
    return options;
  }
  TrainOptions served(std::vector<std::string> changes = {}) const {
    changes.insert(changes.begin(), "trainer.strategy=parameter_server");
    return with(changes);
  }

  static FittedCourse fit(const TrainOptions& options, int ranks) {
    const auto make_task = [] {
      auto net = torch::nn::Sequential(torch::nn::Linear(3, 400), torch::nn::Tanh(),
                                       torch::nn::Linear(400, 2));
      fill_with_waves(*net);
      return std::make_shared<Task>(nn::from_sequential(net));
    };
    return fit_course(options, std::vector<int>(static_cast<size_t>(ranks), 0), make_task, Waves());
  }
};

TEST_F(ServedRun, SequentialOnesEqualOneProcess) {
  for (const char* optimizer : {"sgd", "adamw"}) {
    options_.optimizer.name = optimizer;
    options_.optimizer.nesterov = optimizer == std::string("sgd");
    options_.schedule.name = "cosine";
    const auto oracle = fit(options_, 1);
    for (const auto& [ranks, servers] : {std::pair(1, 3), {2, 1}, {4, 3}}) {
      const auto course = fit(served({fmt::format("server.servers={}", servers)}), ranks);
      EXPECT_EQ(course.summary.steps, 12);
      EXPECT_LT(distance(course, oracle), 1e-10) << optimizer << ranks << servers;
      EXPECT_NEAR(course.summary.validation_loss, oracle.summary.validation_loss, 1e-6);
    }
  }
}

// Checkpoints hold the optimizer's states under the same names with both strategies. The stop is
// in the middle of an epoch, where nothing but the checkpoint makes a cut.
TEST_F(ServedRun, CheckpointsResumeWithOtherStrategies) {
  options_.optimizer.name = "adamw";
  options_.schedule.name = "step";
  options_.schedule.step_size = 5;
  options_.checkpoint.every_n_train_steps = 4;
  options_.checkpoint.every_n_epochs = 0;
  options_.trainer.max_epochs = 3;
  const auto oracle = fit(options_, 1);
  for (const auto& [first, second] : {std::pair("parameter_server", "ddp"),
                                      {"ddp", "parameter_server"},
                                      {"parameter_server", "parameter_server"}}) {
    auto options = with({fmt::format("run.name={}-{}", first, second)});
    options.trainer.strategy = first;
    options.trainer.max_steps = 8;
    fit(options, 2);
    options.trainer.strategy = second;
    options.trainer.max_steps = -1;
    options.trainer.ckpt_path = "last";
    const auto course = fit(options, 2);
    EXPECT_EQ(course.summary.steps, 18);
    EXPECT_LT(distance(course, oracle), 1e-10) << first << " " << second;
  }
}

TEST_F(ServedRun, WeightAveragesEqualThoseOfOneProcess) {
  options_.swa.swa_lrs = 0.05;
  options_.swa.swa_epoch_start = "2";
  options_.trainer.max_epochs = 4;
  EXPECT_LT(distance(fit(served(), 2), fit(options_, 1)), 1e-10);
}

TEST_F(ServedRun, ReportStaleness) {
  options_.trainer.max_epochs = 4;
  options_.optimizer.lr = 0.01;
  for (const auto& consistency : {"sequential", "bounded", "eventual"}) {
    const bool is_bounded = consistency == std::string("bounded");
    const auto options = served({fmt::format("server.consistency={}", consistency),
                                 fmt::format("server.delay={}", is_bounded ? 2 : 0)});
    const auto summary = fit(options, 2).summary;
    ASSERT_TRUE(summary.metrics.contains("staleness/max")) << consistency;
    if (consistency != std::string("eventual")) {
      EXPECT_LE(summary.metrics.at("staleness/max"), is_bounded ? 2 : 0);
    }
    EXPECT_LE(summary.metrics.at("staleness/p50"), summary.metrics.at("staleness/p95"));
    EXPECT_LE(summary.metrics.at("staleness/p95"), summary.metrics.at("staleness/max"));
    double steps = 0;
    for (const auto* range : {"0", "1", "2_to_3", "4_to_7", "8_or_more"}) {
      steps += summary.metrics.at(fmt::format("staleness/steps_{}", range));
    }
    EXPECT_EQ(steps * 4, 2.0 * static_cast<double>(summary.steps)) << "both ranks' of an epoch";
    std::vector<double> losses;
    for (const auto& [step, row] : csv_rows(summary.run_folder)) {
      if (row.contains("staleness/p95")) losses.push_back(std::stod(row.at(observe::kEpochLoss)));
    }
    ASSERT_EQ(losses.size(), 4u) << "one row for each epoch";
    EXPECT_LT(losses.back(), losses.front()) << consistency;
  }
}

TEST_F(ServedRun, RefuseWhatServersCannotDo) {
  const auto refused = [&](const std::vector<std::string>& changes, const std::string& got,
                           const std::string& expected) {
    const auto options = served(changes);
    const std::string message =
        "[train] strategy parameter_server steps parameters on servers; got " + got +
        ", expected " + expected;
    EXPECT_ERROR(fit(options, 1), ErrorKind::usage, message);
  };
  options_.trainer.precision = "32";
  refused({"trainer.gradient_clip_val=0.5"}, "trainer.gradient_clip_val 0.500000",
          "0: no rank has the mean gradient that would be clipped");
  refused({"optim.name=lamb"}, "optim.name lamb", "optim.name sgd, adam, adamw or adagrad");
  refused({"trainer.precision=bf16-true"}, "trainer.precision bf16-true", "32, 64 or bf16-mixed");
  refused({"ddp.hook=fp16"}, "ddp.hook fp16", "none; server.push_filters compress gradients");
  refused({"optim.name=adamw", "offload.optimizer=" + folder_.path().string()},
          "offload.optimizer " + folder_.path().string(), "none: servers keep the states");
  refused({"server.push_filters=skip probability=0.5"},
          "server.push_filters skip probability=0.5 with server.consistency sequential",
          "no filter that leaves out gradients, or server.consistency bounded or eventual");
  refused({"server.push_filters=significant threshold=1", "server.consistency=eventual"},
          "server.push_filters significant threshold=1",
          "none of significant and kkt, whose kept gradients checkpoints would lack");
  EXPECT_ERROR(fit(served({"server.delay=2"}), 1), ErrorKind::usage,
               "[layout] servers.delay of servers.consistency sequential; got 2, expected 0, or "
               "servers.consistency bounded");
  EXPECT_ERROR(fit(served({"server.replicas=1"}), 1), ErrorKind::usage,
               "[layout] servers.replicas; got 1, expected fewer than the 1 server");
}

}  // namespace
}  // namespace troika::train
