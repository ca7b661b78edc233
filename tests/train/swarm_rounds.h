// DiLoCo in one process, on the samples that peers of a swarm trained on.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/train/swarm_training.h"
#include "troika/parallel/swarm/local_updates.h"

namespace troika::train {

// The inner steps of one peer in a round: the samples of each.
struct InnerSteps {
  std::vector<std::vector<int64_t>> before, after;  // the changes were sent
};

// The inner steps of a peer, by round.
using PeerRounds = std::map<int64_t, InnerSteps>;

class RecordsRounds : public Callback {
 public:
  // Leaves out those before round `first`.
  explicit RecordsRounds(PeerRounds& to, int64_t first = 0) : to_(to), first_(first) {}
  std::string name() const override { return "records_rounds"; }
  void on_train_batch_start(FitContext& context, const data::Batch& batch) override {
    if (context.at.step < first_) return;
    const auto& updates = dynamic_cast<const parallel::LocalUpdates&>(*context.training.store);
    auto& round = to_[context.at.step];
    (updates.is_sent() ? round.after : round.before).push_back(batch.samples);
  }

 private:
  PeerRounds& to_;
  const int64_t first_;
};

// A peer of the oracle takes part in these rounds.
struct OraclePeer {
  PeerRounds rounds = {};
  int64_t first = 0, end = 1 << 20;
};

class LocalUpdatesTraining : public SwarmTraining {
 protected:
  LocalUpdatesTraining() {
    options_.swarm.use_local_updates = true;
    options_.diloco.outer_momentum = 0.8;
    options_.trainer.max_steps = 5;
    options_.data.global_batch_size = 24;
    options_.optimizer.weight_decay = 0;
    options_.optimizer.momentum = 0.6;
    options_.schedule.name = "constant";
  }

  // Peers that know each other, with micro-batches of 2, 4 and 3 samples.
  std::vector<TrainOptions> unequal_peers(int count) const {
    auto all = peers(count);
    for (size_t i = 0; i < all.size(); ++i) all[i].data.batch_size = i == 0 ? 2 : i == 1 ? 4 : 3;
    return all;
  }

  // The fragment of each parameter of make_smooth_task(), which have 24, 8, 16 and 2 elements.
  std::vector<size_t> fragment_of() const {
    if (options_.diloco.fragments == 1) return {0, 0, 0, 0};
    return {0, 1, 1, 0};
  }

  // The outer weights after these rounds.
  FittedCourse oracle(const std::vector<OraclePeer>& peers, int64_t rounds) const {
    struct Replica {
      std::shared_ptr<Task> task;
      std::vector<at::Tensor> own;
      std::unique_ptr<torch::optim::SGD> inner;
      std::vector<double> samples;  // of each fragment, since its changes were sent
    };
    const at::NoGradGuard no_grad;
    const auto& outer = options_.diloco;
    const auto fragments = static_cast<size_t>(outer.fragments);
    const auto begin = [&](const std::vector<at::Tensor>& theta) {
      Replica one{.task = make_task_(), .own = {}, .inner = {}, .samples = {}};
      one.task->module().to(torch::kDouble);
      one.own = one.task->module().parameters();
      for (size_t p = 0; p < theta.size(); ++p) one.own[p].copy_(theta[p]);
      one.inner = std::make_unique<torch::optim::SGD>(
          one.own,
          torch::optim::SGDOptions(options_.optimizer.lr).momentum(options_.optimizer.momentum));
      one.samples.resize(fragments);
      return one;
    };
    const auto train = [&](Replica& one, const std::vector<std::vector<int64_t>>& steps) {
      const at::AutoGradMode with_gradients(true);
      for (const auto& samples : steps) {
        auto batch = Waves().load(samples, {});
        batch.inputs = batch.inputs.to(torch::kDouble);
        one.inner->zero_grad();
        one.task->training_step(batch).backward();
        one.inner->step();
        for (auto& count : one.samples) count += static_cast<double>(samples.size());
      }
    };
    std::vector<at::Tensor> theta, momentum;
    for (const auto& own : begin({}).own) {
      theta.push_back(own.detach().clone());
      momentum.push_back(at::zeros_like(own));
    }
    std::map<size_t, Replica> replicas;
    const auto fragment_of = this->fragment_of();
    for (int64_t round = 0; round < rounds; ++round) {
      const size_t fragment = static_cast<size_t>(round) % fragments;
      std::vector<at::Tensor> sums;
      for (const auto& t : theta) sums.push_back(at::zeros_like(t));
      double weight = 0;
      for (size_t i = 0; i < peers.size(); ++i) {
        const auto& peer = peers[i];
        if (round >= peer.end) replicas.erase(i);
        if (round < peer.first || round >= peer.end) continue;
        auto& one = replicas.try_emplace(i, begin(theta)).first->second;
        const auto steps = peer.rounds.find(round);
        if (steps != peer.rounds.end()) train(one, steps->second.before);
        const double own = std::exchange(one.samples[fragment], 0);
        weight += own;
        for (size_t p = 0; p < theta.size(); ++p) sums[p] += own * (theta[p] - one.own[p]);
        if (steps != peer.rounds.end()) train(one, steps->second.after);
      }
      for (size_t p = 0; p < theta.size(); ++p) {
        if (fragment_of[p] != fragment) continue;
        const auto mean = sums[p] / weight;
        momentum[p] = outer.outer_momentum * momentum[p] + mean;
        theta[p] = theta[p] - outer.outer_lr * (mean + outer.outer_momentum * momentum[p]);
        for (auto& [i, one] : replicas) {
          one.own[p].copy_(outer.mixing * one.own[p] + (1 - outer.mixing) * theta[p]);
        }
      }
    }
    return {.summary = {}, .weights = theta};
  }

  // Trains all at a time, and adds what they train on to `rounds`.
  std::vector<FittedCourse> fit_rounds(const std::vector<TrainOptions>& all,
                                       std::vector<OraclePeer>& rounds) {
    std::vector<FittedCourse> courses(all.size());
    rounds.resize(all.size());
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < all.size(); ++i) {
      threads.emplace_back([&, i] {
        courses[i] = fit(all[i], make_task_(), member(all[i]),
                         {std::make_shared<RecordsRounds>(rounds[i].rounds)});
      });
    }
    threads.clear();
    return courses;
  }

  MakeTask make_task_ = make_smooth_task<>;  // of two layers
};

}  // namespace troika::train
