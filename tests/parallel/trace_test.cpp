// The events that data parallelism records in a trace.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>

#include "troika/comm/local/local.h"
#include "troika/parallel/data_parallel.h"

namespace troika::parallel {
namespace {

using comm::Group;

// The two events of the average of one bucket in one step.
struct Average {
  std::vector<TraceEvent> ready, span;
};

std::map<std::pair<int64_t, int64_t>, Average> averages_of(const Trace& trace) {
  std::map<std::pair<int64_t, int64_t>, Average> found;
  for (const auto& event : trace.events()) {
    auto& average = found[{event.step, event.bucket}];
    if (event.name == "bucket ready") average.ready.push_back(event);
    if (event.name == "bucket") average.span.push_back(event);
  }
  return found;
}

// Expects the averages of three steps with three buckets of one float each; none on one rank
// without a codec.
void expect_every_average(const Group& group, const comm::CodecOptions& codec) {
  torch::nn::Sequential module;
  for (int i = 0; i < 3; ++i) {
    module->push_back(torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)));
  }
  Trace trace;
  DataParallel ddp(*module, group,
                   {.bucket_bytes = 4, .first_bucket_bytes = 4, .codec = codec, .trace = &trace});
  for (int step = 0; step < 3; ++step) {
    trace.begin_step(step);
    module->forward(at::ones({1, 1})).sum().backward();
    ddp.finish_backward();
  }
  std::map<std::pair<int64_t, int64_t>, Average> averages = averages_of(trace);
  averages.erase({2, -1});  // spans of the step itself, e.g. "buffers"
  averages.erase({1, -1});
  averages.erase({0, -1});
  // A codec starts with the second step; what it replaces is traced as well.
  EXPECT_EQ(averages.size(), group.size() > 1 ? 9u : 0u);
  for (const auto& [key, average] : averages) {
    ASSERT_EQ(average.ready.size(), 1u) << "step " << key.first << ", bucket " << key.second;
    ASSERT_EQ(average.span.size(), 1u) << "step " << key.first << ", bucket " << key.second;
    EXPECT_EQ(average.ready[0].bytes, 4);
    EXPECT_EQ(average.span[0].bytes, 4);
    EXPECT_EQ(average.span[0].track, "communication");
    EXPECT_LE(average.ready[0].start, average.span[0].start);
    EXPECT_LT(average.span[0].start, *average.span[0].end);
  }
}

TEST(DataParallelTrace, HoldsEveryBucketsAverage) {
  for (const int ranks : {1, 2}) {
    comm::local::run(ranks, [](const Group& group) { expect_every_average(group, {}); });
  }
}

TEST(DataParallelTrace, HoldsThoseOfACodec) {
  comm::local::run(2, [](const Group& group) { expect_every_average(group, {.name = "fp16"}); });
}

}  // namespace
}  // namespace troika::parallel
