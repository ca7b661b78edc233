// Fits on ranks that are threads, and their weights.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "troika/base/temporary_folder.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/train/trainer.h"

namespace troika::train {

struct FittedCourse {
  observe::RunSummary summary;
  std::vector<at::Tensor> weights;
};

// Returns the course of rank 0, for ranks on these machines. Every rank must have the same weights.
inline FittedCourse fit_course(const TrainOptions& options, const std::vector<int>& machines,
                               const std::function<std::shared_ptr<Task>()>& make_task,
                               const data::Dataset& data) {
  FittedCourse course;
  const auto ranks = static_cast<int>(machines.size());
  comm::local::run_ranks(comm::local::make(ranks, machines), [&](const comm::Group& group) {
    const auto task = make_task();
    const auto summary = Trainer(options, group).fit(*task, data, data);
    std::vector<at::Tensor> weights;
    for (const auto& parameter : task->module().parameters()) {
      weights.push_back(parameter.detach());
      const auto all = torch::empty({group.size(), parameter.numel()}, parameter.options());
      group.all_gather(all, parameter.detach());
      for (int r = 1; r < group.size(); ++r) EXPECT_TRUE(all[r].equal(all[0])) << "rank " << r;
    }
    if (group.rank() == 0) course = {summary, weights};
  });
  return course;
}

// The greatest difference of two weights.
inline double distance(const FittedCourse& a, const FittedCourse& b) {
  double result = 0;
  for (size_t i = 0; i < a.weights.size(); ++i) {
    result = std::max(result, (a.weights[i] - b.weights[i]).abs().max().item<double>());
  }
  return result;
}

// Options of short runs in 64 bits, in a folder that ends with the test.
class CourseTest : public testing::Test {
 protected:
  CourseTest() {
    options_.run.folder = folder_.path().string();
    options_.run.overwrite = true;
    options_.trainer.precision = "64";
    options_.trainer.max_epochs = 2;
    options_.trainer.enable_progress_bar = false;
    options_.data.global_batch_size = 4;
    options_.optimizer.lr = 0.1;
  }

  const TemporaryFolder folder_;
  TrainOptions options_;
};

}  // namespace troika::train
