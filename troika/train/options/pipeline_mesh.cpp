#include "troika/train/options/pipeline_mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "troika/base/error.h"

namespace troika::train {

namespace {

[[noreturn]] void refuse_mesh(const TrainOptions& options, int ranks, std::string expected) {
  throw Error("train", ErrorKind::usage,
              {.what = "mesh.pipeline and mesh.data do not fit the ranks of this run",
               .got = fmt::format("{} and {} on {} rank{}", options.mesh.pipeline,
                                  options.mesh.data, ranks, ranks == 1 ? "" : "s"),
               .expected = std::move(expected)});
}

}  // namespace

layout::Mesh pipeline_mesh(const TrainOptions& options, int ranks) {
  const auto& [axes, pipeline, data] = options.mesh;
  if (!axes.empty()) {
    if (pipeline == -1 && data == -1) return layout::Mesh::parse(axes, ranks);
    throw Error(
        "train", ErrorKind::usage,
        {.what = "mesh.axes and mesh.pipeline or mesh.data both give the mesh",
         .got = fmt::format("mesh.axes {}, mesh.pipeline {}, mesh.data {}", axes, pipeline, data),
         .expected = "mesh.axes alone, or no mesh.axes"});
  }
  const auto rest = [&](int64_t other) {
    if (ranks > 0 && ranks % other != 0) {
      refuse_mesh(options, ranks, fmt::format("a multiple of {} ranks", other));
    }
    return std::max<int64_t>(1, ranks / other);
  };
  const int64_t stages = pipeline != -1 ? pipeline : rest(data == -1 ? 1 : data);
  const int64_t replicas = data != -1 ? data : rest(stages);
  if (ranks > 0 && stages * replicas != ranks) {
    refuse_mesh(options, ranks,
                "sizes whose product is the number of ranks, or -1 for one of them");
  }
  return layout::Mesh::parse(fmt::format("pipeline={} data={}", stages, replicas));
}

void refuse_ignored_pipeline_options(const layout::Plan& plan, const TrainOptions& options,
                                     const char* strategy) {
  const auto refuse = [&](const char* does_not, std::string got, std::string expected) {
    throw Error("train", ErrorKind::usage,
                {.what = fmt::format("strategy {} does not {}", strategy, does_not),
                 .got = std::move(got),
                 .expected = std::move(expected),
                 .hint = "set trainer.strategy to pipeline"});
  };
  if (options.pipeline.vertical_sync && plan.weights() != layout::StageWeights::vertical_sync) {
    throw Error("train", ErrorKind::usage,
                {.what = fmt::format("strategy {} does not take pipeline.vertical_sync", strategy),
                 .got = "true",
                 .expected = "false, or the strategy pipedream"});
  }
  if (!options.pipeline.stash_weights && plan.weights() != layout::StageWeights::unstashed) {
    throw Error("train", ErrorKind::usage,
                {.what = fmt::format("strategy {} does not take pipeline.stash_weights", strategy),
                 .got = "false",
                 .expected = "true, or the strategy pipedream without pipeline.vertical_sync"});
  }
  if (options.pipeline.in_flight != 1 && !plan.is_asynchronous()) {
    throw Error("train", ErrorKind::usage,
                {.what = fmt::format("strategy {} does not take pipeline.in_flight", strategy),
                 .got = std::to_string(options.pipeline.in_flight),
                 .expected = "1, or the strategy pipedream or pipedream_2bw"});
  }
  if (options.pipeline.steps_by_replicas && !plan.is_asynchronous()) {
    throw Error(
        "train", ErrorKind::usage,
        {.what = fmt::format("strategy {} does not take pipeline.steps_by_replicas", strategy),
         .got = "true",
         .expected = "false, or the strategy pipedream"});
  }
  if (plan.schedule != layout::kOneStageSchedule) return;
  const auto& [axes, pipeline, data] = options.mesh;
  if (pipeline > 1) {
    refuse("cut the model into stages", fmt::format("mesh.pipeline = {}", pipeline), "-1 or 1");
  }
  if (!axes.empty()) refuse("cut the model into stages", "mesh.axes = " + axes, "none");
  if (options.zero.stage != 0 && options.zero.stage != plan.exchange.zero_stage) {
    refuse("take zero.stage", std::to_string(options.zero.stage),
           fmt::format("0, or the strategy zero{}", options.zero.stage));
  }
}

}  // namespace troika::train
