#include "troika/parallel/pipeline/pipeline.h"

#include <gmock/gmock.h>

#include "tests/parallel/pipeline_course.h"
#include "tests/support/errors.h"
#include "troika/comm/local/local.h"
#include "troika/compat/torch.h"
#include "troika/layout/schedules/table.h"

namespace troika::parallel {
namespace {

using comm::Group;

void expect_oracle_on(int ranks, const std::string& mesh, const std::string& model, int64_t samples,
                      const PipelineOptions& options) {
  comm::local::run(ranks,
                   [&](Group world) { expect_oracle(world, mesh, model, samples, options); });
}

TEST(Pipeline, StepsAsOneProcessUnderEverySchedule) {
  for (const auto& row : layout::schedule_table()) {
    const std::string name(row.name);
    expect_oracle_on(2, "pipeline=2", "mlp", 8, {.schedule = name, .micro_batches = 4});
    expect_oracle_on(4, "pipeline=4", "skips", 8, {.schedule = name, .micro_batches = 8});
  }
}

TEST(Pipeline, StepsAsOneProcessWithEveryModel) {
  for (const std::string model : {"mlp", "skips", "gpt", "resnet20"}) {
    expect_oracle_on(3, "pipeline=3", model, 7, {.schedule = "1f1b", .micro_batches = 5});
    expect_oracle_on(2, "pipeline=2", model, 6, {.schedule = "zb-v", .micro_batches = 3});
    expect_oracle_on(1, "pipeline=1", model, 4, {.schedule = "gpipe", .micro_batches = 2});
  }
}

TEST(Pipeline, AveragesOverReplicas) {
  for (const std::string model : {"skips", "gpt"}) {
    expect_oracle_on(4, "pipeline=2 data=2", model, 6, {.schedule = "1f1b", .micro_batches = 3});
    expect_oracle_on(4, "data=2 pipeline=2", model, 6,
                     {.schedule = "interleaved", .micro_batches = 4});
  }
}

TEST(Pipeline, SharesMicroBatchesAmongUnevenReplicas) {
  expect_oracle_on(4, "pipeline=3 data=2-1-1", "skips", 7, {.micro_batches = 5});
  expect_oracle_on(4, "pipeline=2 data=3-1", "mlp", 7, {.schedule = "gpipe", .micro_batches = 7});
  expect_oracle_on(4, "pipeline=2 data=1-3", "skips", 9, {.schedule = "zb-h1", .micro_batches = 6});
}

TEST(Pipeline, RunsAnyCut) {
  for (const std::string cut : {"embedding|layer|head", "|embedding,layer,head|",
                                "embedding,layer||head", "embedding,layer,head||",
                                "embedding,layer.0|layer.1,layer.2,layer.3|layer.4,layer.5,head"}) {
    expect_oracle_on(3, "pipeline=3", "skips", 8, {.micro_batches = 4, .cut = cut});
  }
}

}  // namespace
}  // namespace troika::parallel
