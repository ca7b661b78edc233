// The algorithms of DiLoCo and streaming DiLoCo, with all replicas in one process.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

#include "tests/parallel/replica.h"
#include "troika/parallel/diloco/diloco.h"

namespace troika::parallel {

struct Course {
  int64_t inner_steps = 4, fragments = 1, delay = 0;
  double mixing = 0;
  double lr = 0.7, momentum = 0.9;

  DiLoCoSchedule schedule() const { return {.inner_steps = inner_steps, .delay = delay}; }
  OuterOptions outer() const {
    return {.lr = lr, .momentum = momentum, .fragments = fragments, .mixing = mixing};
  }
};

// The fragment of each parameter of a Replica, which have 12, 4, 8 and 2 elements.
inline std::vector<int64_t> fragments_of_parameters(int64_t fragments) {
  if (fragments == 1) return {0, 0, 0, 0};
  if (fragments == 2) return {0, 1, 1, 0};
  return {0, 2, 1, 2};
}

struct Values {
  std::vector<at::Tensor> outer, own;  // own: of the replica asked for
};

// Makes `steps` inner steps on each replica; `own` is the one of Values::own.
inline Values reference(const Course& course, int replicas, int64_t steps, int own) {
  std::vector<std::unique_ptr<Replica>> all;
  for (int r = 0; r < replicas; ++r) all.push_back(std::make_unique<Replica>(kAdamW));
  auto theta = all[0]->values();
  const auto fragment_of = fragments_of_parameters(course.fragments);
  std::vector<at::Tensor> momentum, sent(theta.size());
  for (const auto& t : theta) momentum.push_back(torch::zeros_like(t));
  const int64_t interval = course.inner_steps / course.fragments;
  for (int64_t made = 1; made <= steps; ++made) {
    for (int r = 0; r < replicas; ++r) {
      all[r]->backward(r, static_cast<int>(made) - 1);
      all[r]->optimizer->step();
    }
    for (size_t p = 0; p < theta.size(); ++p) {
      const auto is_turn = [&](int64_t steps_then) {
        return steps_then % interval == 0 &&
               (steps_then / interval - 1) % course.fragments == fragment_of[p];
      };
      if (is_turn(made + course.delay)) {
        sent[p] = torch::zeros_like(theta[p]);
        for (const auto& one : all) sent[p] += (theta[p] - one->values()[p]) / replicas;
      }
      if (!is_turn(made)) continue;
      momentum[p] = course.momentum * momentum[p] + sent[p];
      theta[p] = theta[p] - course.lr * (sent[p] + course.momentum * momentum[p]);
      for (auto& one : all) {
        one->assign(p, course.mixing * one->values()[p] + (1 - course.mixing) * theta[p]);
      }
    }
  }
  return {theta, all[own]->values()};
}

}  // namespace troika::parallel
