// The memory prediction for a user's program.
#include "tests/train/own_program.h"
#include "troika/compat/tensor_memory.h"
#include "troika/nn/state.h"
#include "troika/train/memory/prediction.h"

namespace troika::train {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

TEST_F(OwnProgram, ItsMemoryIsPredicted) {
  compat::count_tensor_memory();
  options_.optimizer.name = "adamw";
  options_.data.workers = 0;
  options_.data.batch_size = 8;
  Task task(make_sum_net(64, 256), mean_square);
  testing::internal::CaptureStderr();
  const auto summary =
      Trainer(options_, comm::local::alone()).fit(task, Sums(16, 64), Sums(16, 64));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              ContainsRegex("\n  memory     [0-9.]+ KiB of tensors a rank in training steps, "
                            "predicted\n"));
  ASSERT_EQ(summary.peak_tensor_bytes.size(), 1u);
  const auto measured = static_cast<double>(summary.peak_tensor_bytes[0]);
  ASSERT_EQ(summary.predicted_tensor_bytes.size(), 1u);
  const auto predicted = static_cast<double>(summary.predicted_tensor_bytes[0]);
  EXPECT_LE(predicted, 1.10 * measured);
  EXPECT_GE(predicted, 0.97 * measured);
}

TEST_F(OwnProgram, APredictionLeavesTheModuleAsItWas) {
  compat::count_tensor_memory();
  auto net = make_sum_net();
  Task task(net, mean_square);
  mean_square(net->forward(at::ones({2, 4})), at::ones({2, 1})).backward();
  struct Before {
    at::Tensor tensor, copy, gradient;
    void* address;
  };
  std::vector<Before> all;
  for (const auto& entry : nn::named_state(*net)) {
    all.push_back(
        {entry.second, entry.second.clone(), entry.second.grad(), entry.second.data_ptr()});
  }
  for (const char* precision : {"32", "bf16-mixed", "bf16-true"}) {
    options_.trainer.precision = precision;
    EXPECT_GT(check_memory_of(options_, Sums(), comm::local::alone(), &task).tensor_bytes.at(0),
              1000);
    for (const auto& before : all) {
      EXPECT_TRUE(at::equal(before.tensor, before.copy));
      EXPECT_EQ(before.tensor.data_ptr(), before.address);
      EXPECT_TRUE(before.tensor.grad().is_same(before.gradient));
    }
  }
}

TEST_F(OwnProgram, WhereMemoryIsNotPredictedItSaysWhy) {
  JudgedByItself derived(make_sum_net(), mean_square);
  EXPECT_THAT(said_by_fit(derived),
              HasSubstr("\n  memory     not predicted for a task of a class of its own\n"));
  int calls = 0;
  Task picky(make_sum_net(), [&](const at::Tensor& outputs, const at::Tensor& targets) {
    if (++calls == 1) throw std::domain_error("not yet");
    return mean_square(outputs, targets);
  });
  EXPECT_THAT(said_by_fit(picky),
              HasSubstr("\n  memory     not predicted as a trial with a small batch failed: not "
                        "yet\n"));
  Task whole(make_sum_net(), mean_square);
  options_.trainer.strategy = "diloco";
  EXPECT_THAT(said_by_fit(whole), HasSubstr("\n  memory     not predicted for strategy diloco\n"));
}

TEST_F(OwnProgram, ARunThatDoesNotFitIsRefused) {
  Task task(make_sum_net(1 << 10, 4), mean_square);
  options_.data.batch_size = 1'000'000'000;
  const Sums endless(int64_t{1} << 40, 1 << 10);
  EXPECT_THAT([&] { Trainer(options_, comm::local::alone()).fit(task, endless, Sums()); },
              testing::ThrowsMessage<Error>(
                  ContainsRegex("\\[train\\] the run does not fit into memory; got [0-9.]+ TiB of "
                                "tensors on each rank, predicted, expected at most ")));
}

}  // namespace
}  // namespace troika::train
