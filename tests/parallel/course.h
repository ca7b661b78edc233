// The course of a small training run on the ranks of a group, and the oracle: the course of one
// process on the joined batches, without Troika's data parallelism.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "troika/comm/group.h"

namespace troika::parallel {

struct Lesson {
  std::string model;      // "mlp", "resnet20" or "gpt"
  std::string optimizer;  // of optim::make_optimizer()
  // "plain": each rank has an equal share of each batch. "accumulation": each rank trains its share
  // in 3 parts, the first two under no_sync(). "unused": one parameter is used by one rank or by
  // none, another is never used. "uneven": shares differ, and some are empty. "sync_batch_norm":
  // batch norms train; in all other cases they use their initial statistics. "tied": the token
  // embedding has a second name. "clipping": gradients are clipped to a norm below their own.
  std::string feature;
  at::ScalarType type = at::kDouble;
  int stage = 0;       // of Sharded; 0: DataParallel
  int group_size = 0;  // of Sharded
  // The recomputation on the ranks: a name for nn::recompute_plan(), or "nested". The oracle
  // recomputes nothing.
  std::string recompute = "none";
};

struct Course {
  std::vector<double> losses;     // of each step, over the global batch
  std::vector<at::Tensor> state;  // parameters and buffers after the last
};

// Trains a few steps on global batches of at least 7 samples. Expects the same bits on all ranks
// after every step. Buckets are small, so that there are several.
Course train(comm::Group group, const Lesson& lesson);

// Trains the same in one process, on the joined batches of `ranks` ranks.
Course train_alone(int ranks, const Lesson& lesson);

// Expects equal losses and state, up to `tolerance` relative to the largest value.
void expect_equal(const Course& course, const Course& oracle, double tolerance);

}  // namespace troika::parallel
