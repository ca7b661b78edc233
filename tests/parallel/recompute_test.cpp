// Recomputation under data parallelism: each gradient arrives once, and is the same.
#include <gmock/gmock.h>

#include <mutex>

#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/nn/recompute/recompute.h"
#include "troika/nn/zoo.h"
#include "troika/parallel/data_parallel.h"

namespace troika::parallel {
namespace {

std::vector<at::Tensor> gradients(const comm::Group& group, const std::string& policy,
                                  bool static_graph) {
  // LibTorch's generator belongs to the process, and ranks are threads.
  static std::mutex mutex;
  std::unique_lock lock(mutex);
  torch::manual_seed(2);
  const auto model = nn::make_model({.name = "resnet20", .image_size = 8});
  torch::manual_seed(static_cast<uint64_t>(group.rank()));
  const auto input = at::randn({3, 3, 8, 8});
  lock.unlock();

  DataParallel parallel(*model, group, {.bucket_bytes = 1 << 16, .static_graph = static_graph});
  const auto recomputed = nn::recompute(*model, nn::recompute_plan(policy, model->blocks().size()));
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    model->forward(input).square().mean().backward();
    parallel.finish_backward();
  }
  std::vector<at::Tensor> result;
  for (const auto& parameter : model->parameters()) result.push_back(parameter.grad().clone());
  for (const auto& buffer : model->buffers()) result.push_back(buffer.clone());
  return result;
}

TEST(DataParallel, AveragesGradientsOfRecomputedActivations) {
  for (const bool static_graph : {false, true}) {
    comm::local::run(2, [&](const comm::Group& group) {
      const auto expected = gradients(group, "none", static_graph);
      for (const char* policy : {"full", "sqrt"}) {
        const auto found = gradients(group, policy, static_graph);
        ASSERT_EQ(found.size(), expected.size());
        for (size_t i = 0; i < found.size(); ++i) {
          EXPECT_TRUE(found[i].equal(expected[i])) << policy << " " << i;
        }
      }
    });
  }
}

}  // namespace
}  // namespace troika::parallel
