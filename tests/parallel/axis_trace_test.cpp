// A trace shows what a tensor axis does in forward and backward passes.
#include <gmock/gmock.h>

#include <algorithm>
#include <future>
#include <vector>

#include "tests/parallel/named_events.h"
#include "tests/parallel/tensor_models.h"
#include "troika/base/trace.h"
#include "troika/comm/local/local.h"
#include "troika/nn/keyed_draws.h"
#include "troika/parallel/tensor/tensor_parallel.h"

namespace troika::parallel::tensor_test {
namespace {

// Rank 1 joins the sum of the gradient of the last layer's `c_fc` when rank 0 has computed the
// gradient of its weight. So that sum runs beside this computation on rank 0, or never ends. With
// sequence parallelism, other collectives are between, so only the events are counted.
TEST(TensorAxisTrace, SumsOfInputGradientsRunBesideWeightGradients) {
  for (const bool sequence : {false, true}) {
    const auto options = language("gpt", 0, false);
    std::vector<std::shared_ptr<nn::Model>> models{make(options), make(options)};
    std::promise<void> has_weight;
    Clock::time_point computed;
    comm::local::run(
        2,
        [&](const comm::Group& axis) {
          auto& model = *models[static_cast<size_t>(axis.rank())];
          Trace trace;
          const TensorParallel tensor(model, axis, split_table(options),
                                      {.sequence = sequence, .trace = &trace});
          const auto batch = batch_of(options, 0);
          const auto loss = loss_of(model, batch);
          if (axis.rank() == 1 && !sequence) {
            named(model, "transformer.h.1.mlp.c_proj.weight").register_hook([&](const at::Tensor&) {
              EXPECT_EQ(has_weight.get_future().wait_for(std::chrono::seconds(30)),
                        std::future_status::ready);
            });
          } else if (!sequence) {
            named(model, "transformer.h.1.mlp.c_fc.weight").register_hook([&](const at::Tensor&) {
              computed = Clock::now();
              has_weight.set_value();
            });
          }
          loss.backward();
          const auto sums = named_events(trace, "gradient sum");
          EXPECT_EQ(sums.size(), 5u) << "two of each layer, and that of the output layer";
          const auto weights = named_events(trace, "weight gradients");
          EXPECT_EQ(weights.size(), 4u);
          for (const auto& sum : sums) {
            EXPECT_EQ(sum.track, "tensor axis");
            EXPECT_EQ(sum.bytes, kBatch * kLength * 16 * 8 / (sequence ? 2 : 1));
          }
          // With sequence parallelism, a gather for each sum.
          const auto blocking = named_events(trace, "forward sum");
          EXPECT_EQ(blocking.size(), sequence ? 10u : 5u) << "those of the embedding and layers";
          for (const auto& sum : blocking) {
            EXPECT_EQ(sum.track, "compute") << "nothing runs beside it";
            EXPECT_GT(*sum.end, sum.start);
            EXPECT_EQ(sum.bytes % (kBatch * kLength * 16 * 8 / (sequence ? 2 : 1)), 0);
          }
          if (axis.rank() == 1 || sequence) return;
          const auto at_weight = [&](const TraceEvent& span) {
            return span.start < computed && computed < *span.end;
          };
          EXPECT_EQ(std::ranges::count_if(sums, at_weight), 1);
          EXPECT_EQ(std::ranges::count_if(weights, at_weight), 1);
        },
        {.timeout = std::chrono::seconds(20)});
  }
}

}  // namespace
}  // namespace troika::parallel::tensor_test
