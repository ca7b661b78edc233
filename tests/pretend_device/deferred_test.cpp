// Modules that are made without values, as the program makes them, reach the device tensor by
// tensor.
#include <gmock/gmock.h>

#include "tests/pretend_device/pretend_device.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/resume.h"
#include "troika/comm/local/local.h"
#include "troika/compat/accelerator.h"
#include "troika/compat/deferred_init.h"
#include "troika/data/dataset.h"
#include "troika/nn/state.h"
#include "troika/nn/zoo.h"
#include "troika/train/task/replicated_task.h"
#include "troika/train/trainer.h"

namespace troika::pretend {
namespace {

const at::Device kDevice(c10::kPrivateUse1, 0);

TEST(ValuesToCome, AreMadeOnTheDevice) {
  compat::manual_seed(3);
  const auto expected = nn::make_model({.name = "mlp"});
  compat::manual_seed(3);
  compat::DeferredInit values;
  std::shared_ptr<nn::Model> model;
  values.record([&] { model = nn::make_model({.name = "mlp"}); });
  size_t moved = 0;
  for (const auto& [name, tensor] : nn::named_state(*model)) {
    if (!values.has(tensor)) continue;
    values.move(tensor, kDevice);
    EXPECT_EQ(tensor.device(), kDevice);
    EXPECT_EQ(tensor.storage().nbytes(), 0);
    EXPECT_TRUE(values.has(tensor));
    ++moved;
  }
  EXPECT_GT(moved, 1);
  compat::move_module(*model, kDevice, at::kFloat);
  values.materialize([](compat::DeferredInit::Key, const at::Tensor&) { return false; });
  const auto own = nn::named_state(*model), oracle = nn::named_state(*expected);
  ASSERT_EQ(own.size(), oracle.size());
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_TRUE(own[i].second.cpu().equal(oracle[i].second)) << own[i].first;
  }
}

// A tied weight is one tensor there, too.
TEST(ValuesToCome, ThatTensorsShareStayShared) {
  compat::DeferredInit values;
  at::Tensor whole, part;
  values.record([&] {
    whole = at::empty({300, 200});
    part = whole.narrow(0, 100, 50);
    whole.fill_(2);
  });
  const at::Tensor view = part.detach();
  values.move(whole, kDevice);
  values.move(view, kDevice);
  values.materialize([](compat::DeferredInit::Key, const at::Tensor&) { return false; });
  EXPECT_TRUE(view.eq(2).all().item<bool>());
  whole.narrow(0, 100, 50).fill_(5);
  EXPECT_TRUE(view.eq(5).all().item<bool>());
}

// Images of CIFAR's shape.
class Images : public data::Dataset {
 public:
  int64_t size() const override { return 64; }
  data::Batch load(std::span<const int64_t> indices, std::optional<uint64_t>) const override {
    std::vector<at::Tensor> images;
    for (const auto index : indices) {
      images.push_back(at::arange(3 * 32 * 32, at::kFloat).mul(0.1 * (index + 1)).sin());
    }
    return {.inputs = at::stack(images).view({-1, 3, 32, 32}),
            .targets = at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size())) % 10};
  }
};

class MadeForARun : public testing::TestWithParam<const char*> {
 protected:
  std::vector<checkpoint::RankState> fit(const std::string& accelerator) {
    train::TrainOptions options;
    options.model = {.name = "mlp"};
    options.trainer.enable_progress_bar = false;
    options.trainer.accelerator = accelerator;
    options.trainer.strategy = GetParam();
    if (options.trainer.strategy == "3d") options.mesh.tensor = 2;
    options.trainer.max_steps = 3;
    options.trainer.limit_val_batches = "1";
    options.data.global_batch_size = 4;
    options.optimizer.lr = 0.05;
    options.run.folder = (folder_ / accelerator).string();
    std::vector<checkpoint::RankState> result(2);
    std::vector<std::unique_ptr<train::Task>> tasks;
    for (size_t rank = 0; rank < result.size(); ++rank) {
      compat::manual_seed(7);
      tasks.push_back(train::make_task_to_fit(options));
    }
    comm::local::run(2, [&](const comm::Group& group) {
      const auto rank = static_cast<size_t>(group.rank());
      const Images images;
      train::Trainer trainer(options, group);
      EXPECT_EQ(trainer.fit(*tasks[rank], images, images).status, "finished");
      const auto last = checkpoint::find_checkpoint(trainer.folder() / "checkpoints", "last");
      result[rank] = checkpoint::load_rank_state(last, group.rank());
    });
    return result;
  }

  TemporaryFolder folder_;
};

TEST_P(MadeForARun, TrainsLikeTheCpu) {
  const auto own = fit("gpu"), oracle = fit("cpu");
  for (size_t rank = 0; rank < own.size(); ++rank) {
    ASSERT_EQ(own[rank].model.size(), oracle[rank].model.size());
    ASSERT_FALSE(own[rank].model.empty());
    for (size_t i = 0; i < own[rank].model.size(); ++i) {
      const auto& [name, expected] = oracle[rank].model[i];
      EXPECT_TRUE(own[rank].model[i].second.allclose(expected, 1e-5, 1e-6)) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, MadeForARun,
                         testing::Values("zero3", "1f1b", "zb-h1", "pipedream", "tp", "3d"),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace troika::pretend
