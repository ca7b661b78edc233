// Runs with strategy sandblaster: their iterates are those of L-BFGS in one process.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>

#include "tests/support/errors.h"
#include "tests/train/fitted_course.h"
#include "tests/train/logged_rows.h"
#include "tests/train/waves.h"
#include "troika/base/config.h"
#include "troika/server/batch/lbfgs.h"

namespace troika::train {
namespace {

std::shared_ptr<Task> make_smooth_task() {
  torch::nn::Sequential net(torch::nn::Linear(3, 6), torch::nn::Tanh(), torch::nn::Linear(6, 2));
  fill_with_waves(*net);
  return std::make_shared<Task>(nn::from_sequential(net));
}

std::shared_ptr<Task> make_convex_task() {
  torch::nn::Sequential net(torch::nn::Linear(3, 2));
  fill_with_waves(*net, 0.1);
  return std::make_shared<Task>(nn::from_sequential(net));
}

// The points of L-BFGS on the mean loss of all samples, in one process and one batch.
struct OneProcess {
  std::vector<std::vector<at::Tensor>> points;
  std::vector<double> values;
};

OneProcess one_process(const std::shared_ptr<Task>& task, int iterations, double penalty) {
  auto& module = task->module();
  module.to(at::kDouble);
  std::vector<at::Tensor> parameters = module.parameters();
  size_t size = 0;
  for (const auto& parameter : parameters) size += static_cast<size_t>(parameter.numel());
  server::LocalVectors space(size);
  const auto copy = [&](std::vector<double>& to, const auto& of) {
    size_t at = 0;
    for (const auto& parameter : parameters) {
      const auto flat = of(parameter).detach().contiguous();
      std::copy_n(flat.template data_ptr<double>(), flat.numel(),
                  to.begin() + static_cast<int64_t>(at));
      at += static_cast<size_t>(flat.numel());
    }
  };
  const auto set = [&] {
    const at::NoGradGuard no_grad;
    double* at = space.vector("x").data();
    for (auto& parameter : parameters) {
      parameter.copy_(at::from_blob(at, parameter.sizes(), at::kDouble));
      at += parameter.numel();
    }
  };
  copy(space.vector("x"), [](const auto& parameter) { return parameter; });
  std::vector<int64_t> all(26);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  auto batch = Waves().load(all, {});
  batch.inputs = batch.inputs.to(at::kDouble);
  server::Lbfgs lbfgs(space, [&] {
    set();
    module.zero_grad();
    auto loss = task->training_step(batch);
    for (const auto& parameter : parameters) {
      loss = loss + penalty / 2 * parameter.square().sum();
    }
    loss.backward();
    copy(space.vector("g"), [](const auto& parameter) { return parameter.grad(); });
    return loss.template item<double>();
  });
  OneProcess result;
  for (int i = 0; i < iterations; ++i) {
    result.values.push_back(lbfgs.iterate().value);
    set();
    auto& point = result.points.emplace_back();
    for (const auto& parameter : parameters) point.push_back(parameter.detach().clone());
  }
  return result;
}

double distance(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double result = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    result = std::max(result, (a[i] - b[i]).abs().max().item<double>());
  }
  return result;
}

class SandblasterRun : public CourseTest {
 protected:
  SandblasterRun() {
    options_.trainer.strategy = "sandblaster";
    options_.trainer.log_every_n_steps = 1;
    options_.trainer.max_epochs = 8;
    options_.data.global_batch_size = 0;
    options_.data.batch_size = 4;
  }
  TrainOptions with(const std::vector<std::string>& changes) const {
    auto options = options_;
    auto table = make_table(options);
    for (const auto& change : changes) table.set_argument("--" + change);
    return options;
  }
  static FittedCourse fit(const TrainOptions& options, int ranks,
                          const std::function<std::shared_ptr<Task>()>& make = make_smooth_task) {
    return fit_course(options, std::vector<int>(static_cast<size_t>(ranks), 0), make, Waves());
  }
};

// The number of portions need not divide the samples, nor the batch those of a portion.
TEST_F(SandblasterRun, IteratesEqualThoseOfOneProcess) {
  for (const double penalty : {0.0, 0.01}) {
    const auto expected = one_process(make_smooth_task(), 8, penalty);
    for (const int ranks : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} replicas, penalty {}", ranks, penalty));
      const auto course =
          fit(with({fmt::format("sandblaster.penalty={}", penalty),
                    fmt::format("sandblaster.portions={}", 5 - ranks), "server.servers=2"}),
              ranks);
      EXPECT_EQ(course.summary.steps, 8);
      EXPECT_EQ(course.summary.samples, 8 * 26);
      EXPECT_LT(distance(course.weights, expected.points.back()), 1e-6);
      int rows = 0;
      for (const auto& [step, row] : csv_rows(course.summary.run_folder)) {
        if (!row.contains("train/loss")) continue;
        EXPECT_NEAR(std::stod(row.at("train/loss")),
                    expected.values.at(static_cast<size_t>(step) - 1), 1e-6);
        ++rows;
      }
      EXPECT_GE(rows, 8);
      EXPECT_GE(course.summary.metrics.at("lbfgs/evaluations"), 1);
      EXPECT_EQ(course.summary.metrics.at("lbfgs/repeated"), 0);
    }
  }
}

// The minimum is that of SciPy: scripts/scipy-minimum made the number.
TEST_F(SandblasterRun, EndsAtTheMinimum) {
  const auto course = fit(
      with({"sandblaster.penalty=0.01", "trainer.max_epochs=200", "sandblaster.tolerance=1e-9"}), 2,
      make_convex_task);
  EXPECT_LT(course.summary.steps, 60) << "it has converged";
  EXPECT_NEAR(course.summary.train_loss, 0.636157802339691, 1e-10);
  EXPECT_LE(course.summary.metrics.at("lbfgs/gradient"), 1e-9);
}

TEST_F(SandblasterRun, ResumesExactly) {
  options_.checkpoint.every_n_epochs = 1;
  const auto whole = fit(options_, 2);
  for (const int ranks : {1, 2, 3}) {
    auto options = with({fmt::format("run.name=resumed-{}", ranks), "trainer.max_epochs=3"});
    fit(options, 2);
    options.trainer.max_epochs = 8;
    options.trainer.ckpt_path = "last";
    const auto resumed = fit(options, ranks);
    EXPECT_EQ(resumed.summary.steps, 8);
    EXPECT_LT(distance(resumed.weights, whole.weights), 1e-9) << ranks;
  }
}

TEST_F(SandblasterRun, TrainsFloat32) {
  const auto expected = one_process(make_smooth_task(), 4, 0);
  const auto course = fit(with({"trainer.precision=32", "trainer.max_epochs=4"}), 2);
  EXPECT_EQ(course.weights[0].scalar_type(), at::kFloat);
  for (size_t i = 0; i < course.weights.size(); ++i) {
    EXPECT_LT((course.weights[i] - expected.points.back()[i]).abs().max().item<double>(), 1e-3);
  }
}

TEST_F(SandblasterRun, RefusesWhatCannotWork) {
  const auto refused = [&](const std::vector<std::string>& changes, const std::string& message) {
    EXPECT_ERROR(fit(with(changes), 1), ErrorKind::usage, message);
  };
  const std::string lbfgs =
      "[train] strategy sandblaster steps parameters by L-BFGS on servers; got ";
  refused({"trainer.gradient_clip_val=0.5"},
          lbfgs +
              "trainer.gradient_clip_val 0.5, expected 0: the line search needs gradients as "
              "they are");
  refused({"trainer.precision=bf16-mixed"},
          lbfgs +
              "trainer.precision bf16-mixed, expected 32 or 64: rounding to 16 bits hides what "
              "the line search compares");
  refused({"ddp.hook=fp16"}, lbfgs + "ddp.hook fp16, expected none");
  const std::string function =
      "[train] strategy sandblaster computes a function of all samples again and again; got ";
  refused({"trainer.limit_train_batches=0.5"},
          function + "trainer.limit_train_batches 0.5, expected 1.0: all samples");
  refused({"trainer.accumulate_grad_batches=2"},
          function +
              "2 micro-batches, expected 1: sandblaster.portions and data.batch_size set how "
              "samples are cut");
  refused({"trainer.recompute=budget:1MiB"}, function +
                                                 "trainer.recompute budget:1MiB, expected none or "
                                                 "full: no step is measured before the first pass");
  refused({"offload.activations=host"}, function + "offload.activations host, expected none");
  refused({"swa.swa_lrs=0.1"},
          lbfgs + "swa.swa_lrs 0.1, expected 0: iterates are not a course to average");
  refused(
      {"server.consistency=eventual"},
      "[layout] servers of exchange.method sandblaster_lbfgs; got consistency eventual and "
      "filters \"\", expected consistency sequential and no filters: L-BFGS needs exact numbers");
  refused({"sandblaster.decrease=0.95"},
          "[layout] sandblaster.decrease; got 0.95, expected below 0.9, sandblaster.curvature");
  const std::string alone =
      "[train] strategy sandblaster needs a loss that depends on samples and parameters alone; "
      "got ";
  EXPECT_ERROR(fit(options_, 1, [] { return make_waves_task(8, 0); }), ErrorKind::usage,
               alone +
                   "buffers that change in a forward pass, as those of batch norms do, expected "
                   "a model without them, for example with group norms");
  const auto make_dropout_task = [] {
    torch::nn::Sequential net(torch::nn::Linear(3, 6), torch::nn::Dropout(0.5),
                              torch::nn::Linear(6, 2));
    fill_with_waves(*net);
    return std::make_shared<Task>(nn::from_sequential(net));
  };
  EXPECT_ERROR(fit(options_, 1, make_dropout_task), ErrorKind::usage,
               alone +
                   "two losses of the same samples, as with dropout, expected no dropout and no "
                   "other random numbers");
}

}  // namespace
}  // namespace troika::train
