// Runs with strategy swarm. Peers are threads of this process.
#include <gmock/gmock.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/support/errors.h"
#include "tests/train/swarm_training.h"
#include "troika/base/config.h"
#include "troika/parallel/swarm/swarm_dialer.h"

namespace troika::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// The time of a run is its own, whatever states it takes.
class ExpectsOwnTime : public Callback {
 public:
  explicit ExpectsOwnTime(const Stopwatch& wall) : wall_(wall) {}
  std::string name() const override { return "expects_own_time"; }
  void on_train_batch_end(FitContext& context, const data::Batch&, const at::Tensor&) override {
    EXPECT_LE(context.seconds, wall_.seconds());
    EXPECT_LE(context.at.train_seconds, wall_.seconds());
  }

 private:
  const Stopwatch& wall_;
};

TEST_F(SwarmTraining, IsThatOfOneProcessOnTheSamplesOfAll) {
  options_.trainer.max_steps = 5;
  use_plain_sgd();
  auto all = peers(3);
  all[2].swarm.mode = "client";
  TrainedSamples trained;
  const auto courses = fit_all(all, make_smooth_task<>, &trained);
  ASSERT_EQ(trained.of_step.size(), 5U);
  expect_course(courses, course_on(trained, make_smooth_task<>), 5);
  for (const auto& course : courses) {
    EXPECT_EQ(course.summary.samples, 5 * 8);
    EXPECT_EQ(course.summary.metrics.at("swarm_lone_steps"), 0);
    EXPECT_EQ(course.summary.metrics.at("swarm_peers"), 3);
  }
}

// It reduces all: the others would reduce fewer numbers than a part has at least.
TEST_F(SwarmTraining, AnAuxiliaryPeerReducesForTheOthers) {
  options_.trainer.max_steps = 5;
  use_plain_sgd();
  auto all = peers(3);
  for (auto& own : all) own.swarm.bandwidth_megabits = 1;
  all[2].swarm.bandwidth_megabits = 1000;
  all[2].swarm.mode = "auxiliary";
  TrainedSamples trained;
  auto courses = fit_all(all, make_smooth_task<>, &trained);
  EXPECT_EQ(courses[2].summary.steps, 0);
  EXPECT_EQ(courses[2].summary.status, "finished");
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "peer-2" / "checkpoints"));
  courses.pop_back();
  ASSERT_EQ(trained.of_step.size(), 5U);
  expect_course(courses, course_on(trained, make_smooth_task<>), 5);
  for (const auto& course : courses) {
    EXPECT_EQ(course.summary.metrics.at("swarm_whole_steps"), 5);
    EXPECT_EQ(course.summary.metrics.at("swarm_peers"), 3);
  }
}

TEST_F(SwarmTraining, LeavesOutGradientsThatAreNotFinite) {
  options_.trainer.terminate_on_nan = false;
  const auto all = peers(2);
  std::vector<FittedCourse> courses(all.size());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < all.size(); ++i) {
      threads.emplace_back([&, i] {
        const auto task = i == 0 ? make_smooth_task() : make_smooth_task<SickTask>();
        courses[i] = fit(all[i], task, member(all[i]), {});
      });
    }
  }
  for (const auto& course : courses) {
    EXPECT_EQ(course.summary.steps, 6);
    EXPECT_EQ(distance(course, courses.front()), 0);
    for (const auto& tensor : course.weights) EXPECT_TRUE(tensor.isfinite().all().item<bool>());
  }
}

// Two of three peers are lost in the third step and start anew: the third one goes on, and they
// continue with its bits.
TEST_F(SwarmTraining, LosesNoStepWhenAllButOneAreStartedAgain) {
  options_.optimizer.name = "adamw";
  options_.schedule.name = "cosine";
  options_.trainer.max_steps = 9;
  const auto all = peers(3);
  Arrivals arrivals;
  std::vector<FittedCourse> courses(all.size());
  {
    std::vector<std::jthread> threads;
    threads.emplace_back([&] {
      const auto own = member(all[0]);
      courses[0] =
          fit(all[0], make_normed_task(), own, {std::make_shared<WaitsFor>(arrivals, 2, 6, *own)});
    });
    for (const size_t i : {1, 2}) {
      threads.emplace_back([&, i] {
        EXPECT_THAT(
            [&] {
              fit(all[i], make_normed_task(), member(all[i]), {std::make_shared<LeavesAt>(2)});
            },
            ThrowsMessage<Error>(HasSubstr("lost")));
        auto again = all[i];
        again.swarm.min_peers = 1;
        const Stopwatch wall;
        courses[i] = fit(
            again, make_normed_task(), member(again),
            {std::make_shared<TellsArrival>(arrivals, 6), std::make_shared<ExpectsOwnTime>(wall)});
      });
    }
  }
  for (const auto& course : courses) {
    EXPECT_EQ(course.summary.steps, 9);
    EXPECT_EQ(distance(course, courses.front()), 0);
  }
  const auto& first = courses[0].summary.metrics;
  EXPECT_EQ(first.at("swarm_loads"), 0);
  EXPECT_EQ(first.at("swarm_steps"), 9);
  EXPECT_EQ(first.at("swarm_peers"), 3);
  EXPECT_GE(courses[1].summary.metrics.at("swarm_loads"), 1);
}

// A node waits for its connection then.
TEST_F(SwarmTraining, AClientHasNoAddressAtWhichANodeFails) {
  net::TcpEndpoint endpoint({.name = "own", .secret = secret_, .polls = false});
  std::mutex mutex;
  std::condition_variable changed;
  int rounds = 0;
  parallel::SwarmAcquaintances acquaintances{
      .known = {},
      .told =
          [&] {
            const std::lock_guard lock(mutex);
            ++rounds;
            changed.notify_all();
            return parallel::SwarmAddresses{{"client", {}},
                                            {"gone", {{"127.0.0.1", cluster::free_port()}}}};
          },
      .is_connected = [](const std::string&) { return false; }};
  const parallel::SwarmDialer dialer(endpoint, secret_, "swarm", std::move(acquaintances));
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return rounds >= 2; });
  EXPECT_TRUE(dialer.has_failed_at("gone"));
  EXPECT_FALSE(dialer.has_failed_at("client"));
}

TEST_F(SwarmTraining, SaysWhyAPeerCannotJoin) {
  options_.comm.join_timeout_seconds = 0.5;
  auto all = peers(2);
  all[0].swarm.min_peers = all[1].swarm.min_peers = 1;
  all[0].swarm.peers.clear();
  all[1].swarm.peers.resize(1);
  const auto stops = [] { return false; };
  const auto begin = [&](parallel::SwarmMember& one, const std::string& schema) {
    one.begin({.state = "state", .schema = schema, .model = "a model of " + schema, .save = {}},
              stops);
  };
  EXPECT_THAT([&] { begin(*member(all[1]), "schema"); },
              ThrowsMessage<Error>(testing::AllOf(
                  HasSubstr("the swarm is not there in time; got no peer that answers: [swarm] no "
                            "peer of the swarm at " +
                            all[1].swarm.peers[0]),
                  HasSubstr("comm.join_timeout_seconds"))));
  const auto first = member(all[0]);
  begin(*first, "schema");
  options_.comm.join_timeout_seconds = 20;
  EXPECT_THAT([&] { begin(*member(all[1]), "other"); },
              ThrowsMessage<Error>(HasSubstr(
                  "of the swarm trains something else; got a model of other, expected a model of "
                  "schema (all peers need the same model, optimizer, seed and averages)")));
  auto other = all[1];
  other.swarm.run = "other";
  EXPECT_THAT([&] { begin(*member(other), "schema"); },
              ThrowsMessage<Error>(HasSubstr("a peer trains in another run; got swarm at " +
                                             all[1].swarm.peers[0] + ", expected other")));
  other = all[1];
  other.data.global_batch_size = 16;
  EXPECT_THAT([&] { begin(*member(other), "schema"); },
              ThrowsMessage<Error>(HasSubstr("of the swarm makes other steps; got "
                                             "data.global_batch_size 16, expected 8")));
  // One that trains the same is right, whoever else is there.
  all[1].swarm.min_peers = 2;
  EXPECT_NO_THROW(begin(*member(all[1]), "schema"));
}

TEST_F(SwarmTraining, RefusesWhatItDoesNotSupport) {
  for (const auto& [change, words] : std::vector<std::pair<std::string, std::string>>{
           {"trainer.accumulate_grad_batches=2", "trainer.accumulate_grad_batches 2"},
           {"trainer.precision=16-mixed", "trainer.precision 16-mixed"},
           {"trainer.sync_batchnorm=true", "trainer.sync_batchnorm true"},
           {"trainer.accelerator=gpu", "trainer.accelerator gpu"},
           {"trainer.devices=2", "trainer.devices 2"},
           {"trainer.num_nodes=2", "trainer.num_nodes 2"},
           {"trainer.overfit_batches=1", "trainer.overfit_batches 1"},
           {"ddp.hook=fp16", "ddp.hook fp16"},
           {"ema.enabled=true", "ema.enabled true"},
           {"swa.swa_lrs=0.1", "swa.swa_lrs 0.1"},
           {"data.global_batch_size=0", "data.global_batch_size 0"},
           {"swarm.mode=client", "swarm.peers []"},
           {"swarm.mode=auxiliary", "swarm.peers []"},
           {"swarm.listen=here", "swarm.listen is no address; got \"here\""},
           {"swarm.authority=key@127.0.0.1:1", "swarm.authority names no authority"}}) {
    auto options = options_;
    auto table = make_table(options);
    table.set_argument("--" + change);
    EXPECT_THAT([&] { member(options); }, ThrowsMessage<Error>(HasSubstr(words)));
  }
  cluster::Environment environment;
  environment.world_size = 2;
  EXPECT_ERROR(make_swarm_member(options_, environment), ErrorKind::usage,
               "[train] a peer of a swarm trains by itself; got 2 ranks, expected one process for "
               "each peer");
}

}  // namespace
}  // namespace troika::train
