#include "troika/train/options/pipeline_mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "troika/base/error.h"
#include "troika/layout/recompute.h"

namespace troika::train {

using layout::Axis;

namespace {

// The name of an axis and the option of its size.
struct CutAxis {
  std::string_view name;
  int64_t size;
};

[[noreturn]] void refuse_mesh(const CutAxis& axis, int64_t data, int ranks, std::string expected) {
  throw Error(
      "train", ErrorKind::usage,
      {.what = fmt::format("mesh.{} and mesh.data do not fit the ranks of this run", axis.name),
       .got = fmt::format("{} and {} on {} rank{}", axis.size, data, ranks, ranks == 1 ? "" : "s"),
       .expected = std::move(expected)});
}

// Returns mesh.axes, which takes no sizes of axes beside it.
layout::Mesh mesh_of_axes(const TrainOptions& options, int ranks) {
  const auto& mesh = options.mesh;
  std::string sizes;
  for (const auto& [axis, size] :
       {std::pair(Axis::pipeline, mesh.pipeline), std::pair(Axis::data, mesh.data),
        std::pair(Axis::context, mesh.context), std::pair(Axis::tensor, mesh.tensor)}) {
    if (size != -1) sizes += fmt::format(", mesh.{} {}", name(axis), size);
  }
  if (sizes.empty()) return layout::Mesh::parse(mesh.axes, ranks);
  throw Error("train", ErrorKind::usage,
              {.what = "mesh.axes and the sizes of axes both give the mesh",
               .got = fmt::format("mesh.axes {}{}", mesh.axes, sizes),
               .expected = "mesh.axes alone, or no mesh.axes"});
}

// Returns mesh.axes, or the sizes of the data axis and the other one. -1 stands for the ranks that
// the other axis leaves; if both are -1, all ranks are on `axis`.
layout::Mesh mesh_of(const TrainOptions& options, const CutAxis& axis, int ranks,
                     bool is_outermost) {
  const int64_t data = options.mesh.data;
  if (!options.mesh.axes.empty()) return mesh_of_axes(options, ranks);
  const auto rest = [&](int64_t other) {
    if (ranks > 0 && ranks % other != 0) {
      refuse_mesh(axis, data, ranks, fmt::format("a multiple of {} ranks", other));
    }
    return std::max<int64_t>(1, ranks / other);
  };
  const int64_t size = axis.size != -1 ? axis.size : rest(data == -1 ? 1 : data);
  const int64_t replicas = data != -1 ? data : rest(size);
  if (ranks > 0 && size * replicas != ranks) {
    refuse_mesh(axis, data, ranks,
                "sizes whose product is the number of ranks, or -1 for one of them");
  }
  return layout::Mesh::parse(is_outermost
                                 ? fmt::format("{}={} data={}", axis.name, size, replicas)
                                 : fmt::format("data={} {}={}", replicas, axis.name, size));
}

// Whether replicas that train by themselves are meshes of ranks.
bool trains_meshes(const layout::Plan& plan) {
  return plan.exchange.method == layout::ExchangeMethod::downpour &&
         plan.schedule != layout::kOneStageSchedule && !plan.mesh.has_uneven_stages() &&
         plan.mesh.size(Axis::context) == 1;
}

bool has_axis(const layout::Mesh& mesh, Axis axis) {
  return std::ranges::count(mesh.axes(), axis) > 0;
}

// Returns the ranks that mesh.context leaves; `ranks` and the result are 0 if unknown.
int ranks_beside_context(const TrainOptions& options, int ranks) {
  const int64_t context = std::max<int64_t>(1, options.mesh.context);
  if (ranks % context != 0) {
    throw Error("train", ErrorKind::usage,
                {.what = "mesh.context does not fit the ranks of this run",
                 .got = fmt::format("{} on {} rank{}", context, ranks, ranks == 1 ? "" : "s"),
                 .expected = fmt::format("a multiple of {} ranks", context)});
  }
  return static_cast<int>(ranks / context);
}

// Adds a context axis of mesh.context ranks outside of the tensor axis.
layout::Mesh with_context(const TrainOptions& options, const layout::Mesh& mesh) {
  if (options.mesh.context <= 1) return mesh;
  std::string text;
  for (const auto axis : mesh.axes()) {
    if (axis == Axis::tensor) text += fmt::format("context={} ", options.mesh.context);
    text += fmt::format("{}={} ", name(axis), mesh.size(axis));
  }
  return layout::Mesh::parse(text);
}

}  // namespace

layout::Mesh pipeline_mesh(const TrainOptions& options, int ranks) {
  return mesh_of(options, {name(Axis::pipeline), options.mesh.pipeline}, ranks,
                 /*is_outermost=*/true);
}

layout::Mesh context_mesh(const TrainOptions& options, int ranks) {
  auto mesh =
      mesh_of(options, {name(Axis::context), options.mesh.context}, ranks, /*is_outermost=*/false);
  if (mesh.size(Axis::pipeline) == 1 && mesh.size(Axis::tensor) == 1) return mesh;
  throw Error("train", ErrorKind::usage,
              {.what = "context parallelism alone cuts neither the model nor its layers",
               .got = "mesh.axes " + mesh.text(),
               .expected = "the axes data and context",
               .hint = "set trainer.strategy to 3d"});
}

layout::Mesh tensor_mesh(const TrainOptions& options, int ranks) {
  const int others = ranks_beside_context(options, ranks);
  auto mesh = with_context(options, mesh_of(options, {name(Axis::tensor), options.mesh.tensor},
                                            others, /*is_outermost=*/false));
  if (mesh.size(Axis::pipeline) == 1) return mesh;
  throw Error("train", ErrorKind::usage,
              {.what = "tensor parallelism alone does not cut the model into stages",
               .got = "mesh.axes " + mesh.text(),
               .expected = "no pipeline axis",
               .hint = "set trainer.strategy to 3d"});
}

layout::Mesh three_axes_mesh(const TrainOptions& options, int all_ranks) {
  const int ranks = ranks_beside_context(options, all_ranks);
  const auto& mesh = options.mesh;
  const auto got = fmt::format("mesh.pipeline {}, mesh.data {}, mesh.tensor {} on {} rank{}",
                               mesh.pipeline, mesh.data, mesh.tensor, ranks, ranks == 1 ? "" : "s");
  const auto refuse = [](const char* what, std::string found, std::string expected) {
    throw Error("train", ErrorKind::usage,
                {.what = what, .got = std::move(found), .expected = std::move(expected)});
  };
  if (!mesh.axes.empty()) return mesh_of_axes(options, ranks);
  std::array sizes{mesh.pipeline, mesh.data, mesh.tensor};
  constexpr size_t kData = 1;
  const auto open = std::ranges::count(sizes, -1);
  if (open > 1 && sizes[kData] != -1) {
    refuse("the sizes of the mesh's axes leave two open", got,
           "mesh.pipeline or mesh.tensor, or no mesh.data");
  }
  const auto rest = open > 1 ? sizes.begin() + kData : std::ranges::find(sizes, -1);
  int64_t product = 1;
  for (auto size = sizes.begin(); size != sizes.end(); ++size) {
    if (size != rest && *size == -1) *size = 1;
    if (size != rest) product *= *size;
  }
  if (ranks > 0 && (rest == sizes.end() ? product != ranks : ranks % product != 0)) {
    refuse("mesh.pipeline, mesh.data and mesh.tensor do not fit the ranks of this run", got,
           "sizes whose product is the number of ranks, or -1 for one of them");
  }
  if (rest != sizes.end()) *rest = std::max<int64_t>(1, ranks / product);
  return with_context(options, layout::Mesh::parse(fmt::format("pipeline={} data={} tensor={}",
                                                               sizes[0], sizes[1], sizes[2])));
}

layout::Mesh replicas_mesh(const TrainOptions& options, int ranks) {
  const auto mesh = three_axes_mesh(options, ranks);
  if (mesh.has_uneven_stages() || mesh.size(Axis::context) > 1 || options.zero.stage > 0) {
    throw Error("train", ErrorKind::usage,
                {.what = "replicas that train by themselves",
                 .got = options.zero.stage > 0 ? fmt::format("zero.stage {}", options.zero.stage)
                                               : "mesh.axes " + mesh.text(),
                 .expected = "no ZeRO, no context axis, and as many ranks of each stage"});
  }
  return layout::Mesh::parse(fmt::format("data={} pipeline={} tensor={}", mesh.size(Axis::data),
                                         mesh.size(Axis::pipeline), mesh.size(Axis::tensor)));
}

namespace {

void refuse_ignored_pipeline_options(const layout::Plan& plan, const TrainOptions& options,
                                     const char* strategy) {
  const bool has_tensor_axis =
      has_axis(plan.mesh, Axis::tensor) || has_axis(plan.mesh, Axis::context);
  const auto refuse = [&](const char* does_not, std::string got, std::string expected) {
    throw Error("train", ErrorKind::usage,
                {.what = fmt::format("strategy {} does not {}", strategy, does_not),
                 .got = std::move(got),
                 .expected = std::move(expected),
                 .hint = has_tensor_axis ? "set trainer.strategy to 3d"
                                         : "set trainer.strategy to pipeline"});
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
  const auto& warm_up = options.pipeline.warm_up;
  if (warm_up != parallel::PipelineSection().warm_up && !plan.is_asynchronous()) {
    throw Error("train", ErrorKind::usage,
                {.what = fmt::format("strategy {} does not take pipeline.warm_up", strategy),
                 .got = warm_up,
                 .expected = "runtime, or the strategy pipedream or pipedream_2bw"});
  }
  if (options.pipeline.steps_by_replicas && !plan.is_asynchronous()) {
    throw Error(
        "train", ErrorKind::usage,
        {.what = fmt::format("strategy {} does not take pipeline.steps_by_replicas", strategy),
         .got = "true",
         .expected = "false, or the strategy pipedream"});
  }
  // Predictions of memory compare ZeRO with other strategies, which have no zero.stage.
  const bool takes_stage = has_tensor_axis || plan.schedule != layout::kOneStageSchedule;
  if (takes_stage && options.zero.group_size > 0 && plan.exchange.zero_stage == 0) {
    throw Error("train", ErrorKind::usage,
                {.what = fmt::format("strategy {} shards nothing, so it takes no zero.group_size",
                                     strategy),
                 .got = std::to_string(options.zero.group_size),
                 .expected = "0, or zero.stage from 1 to 3"});
  }
  const auto& mesh = options.mesh;
  if (mesh.pipeline > 1 && plan.mesh.size(Axis::pipeline) == 1) {
    refuse("cut the model into stages", fmt::format("mesh.pipeline = {}", mesh.pipeline),
           "-1 or 1");
  }
  if (plan.schedule != layout::kOneStageSchedule) return;
  if (!mesh.axes.empty() && !has_tensor_axis) {
    refuse("cut the model into stages", "mesh.axes = " + mesh.axes, "none");
  }
  if (options.zero.stage != 0 && options.zero.stage != plan.exchange.zero_stage) {
    refuse("take zero.stage", std::to_string(options.zero.stage),
           fmt::format("0, or the strategy zero{}", options.zero.stage));
  }
}

void refuse_ignored_tensor_options(const layout::Plan& plan, const TrainOptions& options,
                                   const char* strategy) {
  if (plan.mesh.size(Axis::tensor) > 1) return;
  const bool may_cut = has_axis(plan.mesh, Axis::tensor);
  const auto refuse = [&](const char* option, std::string got, std::string expected) {
    throw Error("train", ErrorKind::usage,
                {.what = fmt::format("strategy {} does not cut layers, so it takes no {}", strategy,
                                     option),
                 .got = std::move(got),
                 .expected = std::move(expected),
                 .hint = may_cut ? "set mesh.tensor above 1" : "set trainer.strategy to tp or 3d"});
  };
  if (options.mesh.tensor > 1) {
    refuse("mesh.tensor", std::to_string(options.mesh.tensor), "-1 or 1");
  }
  if (options.mesh.sequence_parallel) refuse("mesh.sequence_parallel", "true", "false");
  if (options.mesh.tensor_overlap) refuse("mesh.tensor_overlap", "true", "false");
}

void refuse_ignored_context_options(const layout::Plan& plan, const TrainOptions& options,
                                    const char* strategy) {
  if (plan.mesh.size(Axis::context) > 1) return;
  const auto refuse = [&](const char* option, std::string got, std::string expected) {
    throw Error("train", ErrorKind::usage,
                {.what = fmt::format("strategy {} does not cut samples, so it takes no {}",
                                     strategy, option),
                 .got = std::move(got),
                 .expected = std::move(expected),
                 .hint = "set mesh.context above 1 and trainer.strategy to cp, tp or 3d"});
  };
  if (options.mesh.context > 1) {
    refuse("mesh.context", std::to_string(options.mesh.context), "-1 or 1");
  }
  const std::string usual = layout::ModelStages().context_method;
  // With one rank, all methods are the same.
  const bool may_cut = has_axis(plan.mesh, Axis::context);
  if (options.mesh.context_method != usual && !may_cut) {
    refuse("mesh.context_method", options.mesh.context_method, usual);
  }
}

}  // namespace

void refuse_ignored_mesh_options(const layout::Plan& plan, const TrainOptions& options,
                                 const char* strategy) {
  refuse_ignored_pipeline_options(plan, options, strategy);
  refuse_ignored_tensor_options(plan, options, strategy);
  refuse_ignored_context_options(plan, options, strategy);
}

void require_runnable_axes(const layout::Plan& plan, const layout::PlanPlaces& places) {
  for (const auto axis : plan.mesh.axes()) {
    const bool is_run = axis != Axis::expert;
    if (is_run || plan.mesh.size(axis) == 1) continue;
    throw Error("train", ErrorKind::usage,
                {.what = fmt::format("the {} axis of a plan cannot be run yet", layout::name(axis)),
                 .got = "mesh.axes " + plan.mesh.text() + places.of("mesh.axes"),
                 .expected = "the axes pipeline, data, tensor and context alone"});
  }
  const bool cuts_layers = plan.mesh.size(Axis::tensor) > 1;
  if (!cuts_layers && plan.mesh.size(Axis::context) == 1) return;
  const auto refuse = [&](const char* with, const std::string& key, const std::string& got,
                          std::string expected) {
    throw Error(
        "train", ErrorKind::usage,
        {.what = fmt::format("a {} axis does not combine with {} yet",
                             cuts_layers ? "tensor" : "context", with),
         .got = fmt::format("{}{} with mesh.axes {}", got, places.of(key), plan.mesh.text()),
         .expected = std::move(expected)});
  };
  if (plan.exchange.method == layout::ExchangeMethod::downpour &&
      plan.mesh.size(Axis::context) > 1) {
    throw Error("train", ErrorKind::usage,
                {.what = "a context axis does not combine with replicas that train by themselves",
                 .got = fmt::format("exchange.method downpour_sgd{} with mesh.axes {}",
                                    places.of("exchange.method"), plan.mesh.text()),
                 .expected = "exchange.method all_reduce"});
  }
  if (plan.is_asynchronous()) {
    refuse("a pipeline without flushes", "schedule.name", "schedule.name " + plan.schedule,
           "a schedule with flushes, as 1f1b");
  }
  if (plan.mesh.has_uneven_stages()) {
    refuse("stages of different numbers of replicas", "mesh.axes", "a data axis by stage",
           "as many replicas of each stage");
  }
  const bool is_pipeline = plan.schedule != layout::kOneStageSchedule;
  if (plan.exchange.method == layout::ExchangeMethod::zero && !is_pipeline) {
    refuse("ZeRO without a schedule of stages", "exchange.method", "exchange.method zero",
           "strategy 3d with mesh.pipeline = 1, or exchange.method all_reduce");
  } else if (!plan.keeps_replicas_equal() && !trains_meshes(plan)) {
    refuse("local steps and parameter servers", "exchange.method", "another exchange.method",
           "exchange.method all_reduce or downpour_sgd");
  }
  if (plan.compression.codec != "none") {
    refuse("compressed gradients", "compression.codec", "ddp.hook " + plan.compression.codec,
           "none");
  }
  if (plan.threads > 0) {
    refuse("replicas in threads", "mesh.threads", fmt::format("mesh.threads {}", plan.threads),
           "0");
  }
  if (layout::recompute_budget(plan.recompute)) {
    refuse("recomputation by measured times", "memory.recompute",
           "trainer.recompute " + plan.recompute, "full, selective, sqrt or every_K");
  }
}

void require_runnable_pipeline(const layout::Plan& plan, const layout::PlanPlaces& places) {
  const auto refuse = [&](const char* what, const std::string& key, const std::string& got,
                          std::string expected) {
    throw Error("train", ErrorKind::usage,
                {.what = what, .got = got + places.of(key), .expected = std::move(expected)});
  };
  if (!plan.keeps_replicas_equal() && !trains_meshes(plan)) {
    refuse("replicas of a pipeline average gradients in each step", "exchange.method",
           std::string("exchange.method ") +
               (plan.exchange.method == layout::ExchangeMethod::downpour      ? "downpour_sgd"
                : plan.exchange.method == layout::ExchangeMethod::sandblaster ? "sandblaster_lbfgs"
                : plan.exchange.method == layout::ExchangeMethod::servers     ? "servers"
                : plan.exchange.method == layout::ExchangeMethod::fault_tolerant ? "quorum"
                : plan.exchange.method == layout::ExchangeMethod::collaborative  ? "collaborative"
                                                                                 : "local_steps"),
           "exchange.method all_reduce, zero or downpour_sgd");
  }
  if (plan.compression.codec != "none") {
    refuse("gradients of a pipeline are not compressed", "compression.codec",
           "ddp.hook " + plan.compression.codec, "none");
  }
  if (plan.threads > 0) {
    refuse("stages of a pipeline are on processes", "mesh.threads",
           fmt::format("mesh.threads {}", plan.threads), "0");
  }
}

}  // namespace troika::train
