// Peers of a swarm that train by themselves between outer steps.
#include <gmock/gmock.h>

#include <filesystem>
#include <thread>

#include "tests/support/errors.h"
#include "tests/train/swarm_rounds.h"
#include "troika/base/config.h"
#include "troika/base/file.h"

namespace troika::train {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// Fragments, delay, and mixing.
class LocalUpdatesOfAll : public LocalUpdatesTraining,
                          public testing::WithParamInterface<std::tuple<int, int, double>> {
 protected:
  LocalUpdatesOfAll() {
    auto& outer = options_.diloco;
    std::tie(outer.fragments, outer.delay, outer.mixing) = GetParam();
  }
};

TEST_P(LocalUpdatesOfAll, AreDiLoCoInOneProcess) {
  auto all = unequal_peers(3);
  all[2].swarm.mode = "client";
  std::vector<OraclePeer> rounds;
  const auto courses = fit_rounds(all, rounds);
  expect_course(courses, oracle(rounds, 5), 5);
  bool is_delayed = false;
  for (size_t i = 0; i < courses.size(); ++i) {
    const auto& summary = courses[i].summary;
    EXPECT_EQ(summary.samples, 5 * 24);
    EXPECT_EQ(summary.metrics.at("swarm_lone_steps"), 0);
    EXPECT_EQ(summary.metrics.at("swarm_peers"), 3);
    for (const auto& [round, steps] : rounds[i].rounds) is_delayed |= !steps.after.empty();
  }
  EXPECT_EQ(is_delayed, options_.diloco.delay > 0);
}

INSTANTIATE_TEST_SUITE_P(Swarm, LocalUpdatesOfAll,
                         testing::Values(std::tuple(1, 0, 0.0), std::tuple(2, 0, 0.25),
                                         std::tuple(1, 1, 0.0), std::tuple(2, 2, 0.5)));

// More numbers than the blocks of a codec have.
constexpr int64_t kWide = 200;

// Running statistics, too. The codec rounds what peers send.
TEST_F(LocalUpdatesTraining, AllPeersHaveTheSameBits) {
  options_.optimizer.name = "adamw";
  options_.schedule.name = "cosine";
  options_.diloco.fragments = 2;
  options_.diloco.delay = 1;
  options_.diloco.mixing = 0.5;
  options_.swarm.grad_compression = "int8";
  options_.swarm.grad_compression_threshold = 2 * kWide;
  const auto courses = fit_all(unequal_peers(2), [] {
    return std::make_shared<Task>(make_waves_model(kWide, /*dropout=*/0.2));
  });
  ASSERT_EQ(courses[0].weights.size(), courses[1].weights.size());
  for (size_t i = 0; i < courses[0].weights.size(); ++i) {
    const auto& own = courses[0].weights[i];
    // Each peer counts its own batches.
    EXPECT_TRUE(own.dim() == 0 || own.equal(courses[1].weights[i])) << i;
  }
}

TEST_F(LocalUpdatesTraining, ChangesAreCompressed) {
  options_.swarm.grad_compression = "int8";
  options_.swarm.grad_compression_threshold = 2 * kWide;
  make_task_ = [] {
    torch::nn::Sequential net(torch::nn::Linear(3, kWide), torch::nn::Tanh(),
                              torch::nn::Linear(kWide, 2));
    fill_with_waves(*net, /*factor=*/0.1);
    return std::make_shared<Task>(nn::from_sequential(net));
  };
  std::vector<OraclePeer> rounds;
  const auto courses = fit_rounds(unequal_peers(2), rounds);
  EXPECT_EQ(distance(courses[0], courses[1]), 0);
  const auto exact = oracle(rounds, 5);
  EXPECT_LT(distance(courses[0], exact), 1e-2);
  // The weights of both layers have more elements than the threshold, and the biases fewer.
  const auto error = [&](size_t i) {
    return (courses[0].weights[i] - exact.weights[i]).abs().max().item<double>();
  };
  EXPECT_GT(error(0), 1e-6);
  EXPECT_GT(error(2), 1e-6);
}

// A peer that comes late has the outer weights and the outer optimizer's states of its donor.
TEST_F(LocalUpdatesTraining, ALatePeerBeginsWithTheOuterWeights) {
  options_.optimizer.momentum = 0;
  options_.diloco.fragments = 2;
  options_.diloco.mixing = 0.5;
  options_.trainer.max_steps = 6;
  auto all = unequal_peers(2);
  all[0].swarm.min_peers = all[1].swarm.min_peers = 1;
  all[0].swarm.peers.clear();
  all[1].swarm.peers.resize(1);
  Arrivals first, late;
  std::vector<FittedCourse> courses(2);
  std::vector<OraclePeer> rounds(2);
  rounds[1].first = 3;
  {
    std::vector<std::jthread> threads;
    threads.emplace_back([&] {
      const auto own = member(all[0]);
      courses[0] = fit(
          all[0], make_smooth_task(), own,
          {std::make_shared<TellsArrival>(first, 3), std::make_shared<WaitsFor>(late, 1, 3, *own),
           std::make_shared<RecordsRounds>(rounds[0].rounds)});
    });
    threads.emplace_back([&] {
      while (!first.wait_shortly_for(1)) {
      }
      courses[1] = fit(all[1], make_smooth_task(), member(all[1]),
                       {std::make_shared<TellsArrival>(late, 3),
                        std::make_shared<RecordsRounds>(rounds[1].rounds, /*first=*/3)});
    });
  }
  expect_course(courses, oracle(rounds, 6), 6);
  EXPECT_EQ(courses[0].summary.metrics.at("swarm_loads"), 0);
  EXPECT_EQ(courses[1].summary.metrics.at("swarm_loads"), 1);
  EXPECT_EQ(courses[1].summary.metrics.at("swarm_peers"), 2);
}

TEST_F(LocalUpdatesTraining, ALostPeerCostsWhatItHasLearnedInTheRound) {
  const auto all = unequal_peers(3);
  std::vector<FittedCourse> courses(2);
  std::vector<OraclePeer> rounds(3);
  rounds[2].end = 2;
  {
    std::vector<std::jthread> threads;
    for (const size_t i : {0, 1}) {
      threads.emplace_back([&, i] {
        courses[i] = fit(all[i], make_smooth_task(), member(all[i]),
                         {std::make_shared<RecordsRounds>(rounds[i].rounds)});
      });
    }
    threads.emplace_back([&] {
      EXPECT_THAT(
          [&] {
            fit(all[2], make_smooth_task(), member(all[2]),
                {std::make_shared<LeavesAt>(2), std::make_shared<RecordsRounds>(rounds[2].rounds)});
          },
          ThrowsMessage<Error>(HasSubstr("lost")));
    });
  }
  expect_course(courses, oracle(rounds, 5), 5);
  EXPECT_EQ(courses[0].summary.metrics.at("swarm_peers"), 2);
}

TEST_F(LocalUpdatesTraining, ResumesWithTheWeightsOfEachPeer) {
  options_.diloco.fragments = 2;
  options_.diloco.delay = 1;
  options_.diloco.mixing = 0.5;
  options_.checkpoint.enabled = true;
  options_.checkpoint.every_n_train_steps = 3;
  options_.checkpoint.every_n_epochs = 0;
  auto all = unequal_peers(2);
  for (auto& own : all) own.trainer.max_steps = 3;
  std::vector<OraclePeer> rounds;
  expect_course(fit_rounds(all, rounds), oracle(rounds, 3), 3);
  for (auto& own : all) {
    own.trainer.ckpt_path = "last";
    own.trainer.max_steps = 6;
  }
  // Without local updates, there is no place for the outer weights.
  auto plain = all[0];
  plain.swarm.use_local_updates = false;
  plain.swarm.min_peers = 1;
  EXPECT_THAT([&] { fit(plain, make_smooth_task(), member(plain), {}); },
              ThrowsMessage<Error>(HasSubstr("a saved state does not fit; got ")));
  const auto courses = fit_rounds(all, rounds);
  expect_course(courses, oracle(rounds, 6), 6);
  for (const auto& course : courses) EXPECT_EQ(course.summary.metrics.at("swarm_loads"), 0);
}

TEST_F(LocalUpdatesTraining, APausedPeerFollows) {
  options_.diloco.mixing = 0.5;
  auto all = unequal_peers(2);
  const auto file = folder_.path() / "pause";
  all[1].swarm.pause_file = file.string();
  write_file_atomically(file, "");
  std::vector<FittedCourse> courses(2);
  std::vector<OraclePeer> rounds(2);
  {
    std::vector<std::jthread> threads;
    threads.emplace_back([&] {
      courses[0] = fit(all[0], make_smooth_task(), member(all[0]),
                       {std::make_shared<RemovesFile>(file, 2),
                        std::make_shared<RecordsRounds>(rounds[0].rounds)});
    });
    threads.emplace_back([&] {
      courses[1] = fit(all[1], make_smooth_task(), member(all[1]),
                       {std::make_shared<RecordsRounds>(rounds[1].rounds)});
    });
  }
  EXPECT_FALSE(rounds[1].rounds.contains(0));
  EXPECT_FALSE(rounds[1].rounds.contains(1));
  expect_course(courses, oracle(rounds, 5), 5);
  EXPECT_EQ(courses[1].summary.metrics.at("swarm_loads"), 0);
}

TEST_F(LocalUpdatesTraining, LeavesOutGradientsThatAreNotFinite) {
  auto alone = peers(1)[0];
  EXPECT_THAT([&] { fit(alone, make_smooth_task<SickTask>(), member(alone), {}); },
              ThrowsMessage<Error>(HasSubstr("the gradients of this peer are not finite")));
  alone.trainer.terminate_on_nan = false;
  const auto course = fit(alone, make_smooth_task<SickTask>(), member(alone), {});
  EXPECT_EQ(course.summary.steps, 5);
  for (const auto& tensor : course.weights) EXPECT_TRUE(tensor.isfinite().all().item<bool>());
}

TEST_F(LocalUpdatesTraining, RefusesOptionsWithoutAMeaning) {
  for (const auto& [change, words] : std::vector<std::pair<std::string, std::string>>{
           {"swarm.delay_optimizer_step=true",
            "swarm.delay_optimizer_step true, expected false (diloco.delay"},
           {"diloco.codec=int8", "diloco.codec int8, expected none (swarm.grad_compression"},
           {"diloco.inner_steps=10", "diloco.inner_steps 10"},
           {"diloco.warmup_steps=10", "diloco.warmup_steps 10, expected 0"}}) {
    auto options = options_;
    auto table = make_table(options);
    table.set_argument("--" + change);
    EXPECT_THAT([&] { member(options); },
                ThrowsMessage<Error>(testing::AllOf(
                    HasSubstr("a peer of a swarm trains by itself between outer steps; got "),
                    HasSubstr(words))))
        << change;
  }
  options_.diloco.fragments = 9;
  const auto alone = peers(1)[0];
  EXPECT_ERROR(fit(alone, make_smooth_task(), member(alone), {}), ErrorKind::usage,
               "[parallel] fragments of a model; got 9, expected from 1 to the 4 trained "
               "parameters, which are not cut");
}

}  // namespace
}  // namespace troika::train
