// Runs with strategy ft_ddp. Replicas are threads of this process, and so is the lighthouse.
#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/train/logged_rows.h"
#include "tests/train/quorum_course.h"
#include "troika/checkpoint/reader.h"
#include "troika/checkpoint/resume.h"
#include "troika/train/run/fit_context.h"

namespace troika::train {
namespace {

using testing::HasSubstr;

std::shared_ptr<Task> make_plain_task() {
  torch::nn::Sequential net(torch::nn::Linear(3, 8), torch::nn::Tanh(), torch::nn::Dropout(0.2),
                            torch::nn::Linear(8, 2));
  fill_with_waves(*net);
  return std::make_shared<Task>(nn::from_sequential(net));
}

// Fails after the last step and before its checkpoint.
class LosesAtTheEnd : public Callback {
 public:
  std::string name() const override { return "loses_at_the_end"; }
  void on_train_epoch_end(FitContext& context) override {
    if (context.at.step == 8) throw Error("test", ErrorKind::failure, {.what = "lost"});
  }
};

class FtDdpRun : public QuorumCourse {
 protected:
  FtDdpRun() : QuorumCourse(make_plain_task) {
    options_.trainer.strategy = "ft_ddp";
    options_.trainer.num_sanity_val_steps = 0;
    options_.schedule.name = "cosine";
    options_.trainer.gradient_clip_val = 0.5;
    options_.optimizer.name = "adamw";
    options_.data.global_batch_size = 6;
  }

  FittedCourse fit_alone(const TrainOptions& options) {
    auto own = options;
    own.trainer.strategy = "ddp";
    own.run.name = "alone";
    return fit_course(own, {0}, make_plain_task, Waves());
  }
};

TEST_F(FtDdpRun, OfAllReplicasIsThatOfOneProcess) {
  const auto oracle = fit_alone(options_);
  for (const int replicas : {1, 2, 4}) {
    SCOPED_TRACE(replicas);
    const auto courses = fit_replicas(options_, replicas);
    for (const auto& course : courses) {
      EXPECT_EQ(course.summary.steps, oracle.summary.steps);
      EXPECT_EQ(distance(course, courses.front()), 0);
      EXPECT_LE(distance(course, oracle), 1e-10);
      EXPECT_NEAR(course.summary.validation_loss, oracle.summary.validation_loss, 1e-10);
      EXPECT_EQ(course.summary.metrics.at("samples_counted"), 2 * 24);
      EXPECT_EQ(course.summary.metrics.at("samples_begun"), 2 * 24);
      EXPECT_EQ(course.summary.metrics.at("replicas"), replicas);
    }
    // One replica writes the checkpoints, and each its own log.
    const std::filesystem::path folder = courses.front().summary.run_folder;
    EXPECT_FALSE(checkpoint::linked_checkpoint(folder / "checkpoints", "last").empty());
    EXPECT_FALSE(csv_rows(folder).empty());
    for (int rank = 1; rank < replicas; ++rank) {
      const auto own = folder / "replicas" / std::to_string(rank);
      EXPECT_FALSE(csv_rows(own).empty());
      EXPECT_FALSE(std::filesystem::exists(own / "checkpoints"));
    }
  }
}

TEST_F(FtDdpRun, ResumesWithAnotherNumberOfReplicas) {
  options_.schedule.name = "constant";  // no function of trainer.max_steps
  const auto oracle = fit_alone(options_);
  fit_replicas(with({"trainer.max_steps=3"}), 3);
  const auto courses = fit_replicas(with({"trainer.ckpt_path=last"}), 2);
  EXPECT_EQ(courses.front().summary.steps, 8);
  EXPECT_LE(distance(courses.front(), oracle), 1e-10);
  EXPECT_EQ(distance(courses.front(), courses.back()), 0);
}

// Replica 0 is lost in the second epoch. Another one takes its place, and continues with the bits
// of the others: in the middle of an epoch, or at the beginning of one, in which hooks average
// weights. Replicas wait for it before a step, so that it comes before the end.
TEST_F(FtDdpRun, GoesOnWithoutALostReplicaAndTakesAnother) {
  const auto options = with({"trainer.max_epochs=8", "ft_ddp.min_replicas=2", "swa.swa_lrs=0.02",
                             "swa.swa_epoch_start=1", "checkpoint.every_n_train_steps=4"});
  for (const int64_t step : {5, 7}) {
    SCOPED_TRACE(step);
    lighthouse_.emplace(secret_, net::Address{"127.0.0.1", 0});
    FittedCourse other, joiner;
    std::jthread second([&] { other = fit_replica(options, 1, 2); });
    std::jthread first([&] {
      EXPECT_THAT([&] { fit_replica(options, 0, 2, {std::make_shared<Loses>(step)}); },
                  testing::ThrowsMessage<Error>(HasSubstr("lost")));
      joiner = fit_replica(options, 0, 2);
    });
    first.join();
    second.join();
    EXPECT_EQ(other.summary.steps, 32);
    EXPECT_EQ(joiner.summary.steps, 32);
    EXPECT_EQ(distance(other, joiner), 0);
    EXPECT_EQ(other.summary.metrics.at("samples_begun"), 32 * 6);
    EXPECT_EQ(other.summary.metrics.at("samples_counted"), 32 * 6 - 3);
    EXPECT_EQ(other.summary.metrics.at("replicas_lost"), 1);
    EXPECT_EQ(other.summary.validation_loss, joiner.summary.validation_loss);
  }
}

TEST_F(FtDdpRun, TheNextReplicaSavesTheEndOfALostOne) {
  lighthouse_.emplace(secret_, net::Address{"127.0.0.1", 0});
  std::vector<FittedCourse> others(2);
  std::vector<std::jthread> threads;
  threads.emplace_back([&] {
    EXPECT_THAT([&] { fit_replica(options_, 0, 3, {std::make_shared<LosesAtTheEnd>()}); },
                testing::ThrowsMessage<Error>(HasSubstr("lost")));
  });
  for (const int rank : {1, 2}) {
    threads.emplace_back(
        [&, rank] { others[static_cast<size_t>(rank) - 1] = fit_replica(options_, rank, 3); });
  }
  threads.clear();
  EXPECT_EQ(distance(others[0], others[1]), 0);
  const auto folder =
      std::filesystem::path(others[0].summary.run_folder).parent_path().parent_path();
  const auto saved = fit_alone(with({"trainer.ckpt_path=" + (folder / "checkpoints").string()}));
  EXPECT_EQ(saved.summary.steps, 8);
  EXPECT_EQ(distance(saved, others[0]), 0);
}

TEST_F(FtDdpRun, TrainsOnceInALaunch) {
  lighthouse_.emplace(secret_, net::Address{"127.0.0.1", 0});
  const auto task = make_plain_task();
  Trainer trainer(options_, comm::local::alone());
  trainer.take_part(std::make_shared<QuorumRun>(
      options_, QuorumPlace{.lighthouse = net::Address{"127.0.0.1", lighthouse_->port()},
                            .secret = secret_}));
  const Waves waves;
  trainer.fit(*task, waves, waves);
  EXPECT_ERROR(trainer.fit(*task, waves, waves), ErrorKind::usage,
               "[train] a launch with a lighthouse trains once; got a second fit(), expected one "
               "fit() (start another launch, or call fit() of another Trainer in one process)");
}

TEST_F(FtDdpRun, RefusesWhatItDoesNotSupport) {
  for (const auto& [change, words] : std::vector<std::pair<std::string, std::string>>{
           {"trainer.accumulate_grad_batches=2", "trainer.accumulate_grad_batches 2"},
           {"trainer.precision=16-mixed", "trainer.precision 16-mixed"},
           {"trainer.sync_batchnorm=true", "trainer.sync_batchnorm true"},
           {"trainer.accelerator=gpu", "trainer.accelerator gpu"},
           {"trainer.max_time=00:00:01:00", "trainer.max_time"},
           {"ddp.hook=fp16", "ddp.hook fp16"},
           {"ema.enabled=true", "ema.enabled true"},
           {"ddp.broadcast_buffers=false", "ddp.broadcast_buffers false"},
           {"trainer.cpu_bind=cores", "trainer.cpu_bind cores"},
           {"checkpoint.monitor=train/loss", "checkpoint.monitor train/loss"},
           {"ft_ddp.min_replicas=3", "ft_ddp.min_replicas 3, expected at most the 2"},
           {"data.global_batch_size=1", "a global batch of 1 samples"}}) {
    EXPECT_THAT([&] { QuorumRun(with({change}), {.replicas = 2}); },
                testing::ThrowsMessage<Error>(HasSubstr(words)));
  }
  cluster::Environment environment;
  environment.world_size = 2;
  const auto none = [](const std::string&) { return std::nullopt; };
  EXPECT_THAT([&] { find_quorum_place(environment, none); },
              testing::ThrowsMessage<Error>(HasSubstr("2 replicas without TROIKA_LIGHTHOUSE")));
  const auto launched = [](const std::string& name) {
    return name == "TROIKA_LIGHTHOUSE" ? std::optional<std::string>("127.0.0.1:1") : std::nullopt;
  };
  EXPECT_ERROR(make_quorum_run(with({"trainer.strategy=zero1"}), environment, launched),
               ErrorKind::usage,
               "[train] a fault-tolerant launch of ranks that do not go on without each other; got "
               "another strategy, expected troika train with strategy ft_ddp or diloco (leave out "
               "--fault-tolerant)");
}

}  // namespace
}  // namespace troika::train
