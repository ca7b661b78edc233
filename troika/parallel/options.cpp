#include "troika/parallel/options.h"

#include "troika/layout/schedules/table.h"

namespace troika::parallel {

using config::above;
using config::above_to;
using config::count_from;
using config::from_to_below;
using config::one_of;

namespace {

config::Rule axis_size() {
  return {"an integer >= 1, or -1 for the rest of the ranks", [](const config::Value& value) {
            const auto size = std::get<int64_t>(value);
            return size >= 1 || size == -1;
          }};
}

}  // namespace

void add_options(config::Table& table, DdpOptions& options) {
  table.add("ddp.find_unused_parameters", &options.find_unused_parameters,
            "allow parameters that get no gradient in some steps");
  table.add("ddp.static_graph", &options.static_graph,
            "every step gives the same parameters gradients as the first one does");
  table.add("ddp.broadcast_buffers", &options.broadcast_buffers,
            "all processes get rank 0's buffers (batch-norm statistics) after each step");
  auto& codec = options.codec;
  table.add("ddp.hook", &codec.name, "how gradients are compressed on their way",
            one_of({"none", "fp16", "bf16", "powersgd", "topk", "int8"}));
  table.add("ddp.error_feedback", &codec.error_feedback,
            "of powersgd, topk and int8: what compression left out is added to the next gradient");
  table.add("ddp.powersgd_rank", &codec.rank, "of powersgd: rank of the approximation",
            count_from(1));
  table.add("ddp.powersgd_start_step", &codec.start_step,
            "of powersgd: steps without compression first", count_from(0));
  table.add("ddp.powersgd_warm_start", &codec.warm_start,
            "of powersgd: begin from the factors of the step before");
  table.add("ddp.topk_density", &codec.density, "topk: fraction of the numbers that is sent",
            above_to(0.0, 1.0));
  table.add("ddp.int8_block", &codec.block, "of int8: numbers that share a scale", count_from(1));
}

void add_options(config::Table& table, HorovodOptions& options) {
  table.add("horovod.backward_passes_per_step", &options.backward_passes_per_step,
            "of strategy horovod: batches whose summed gradients make one optimizer step",
            count_from(1));
  table.add("horovod.average_aggregated_gradients", &options.average_aggregated_gradients,
            "of strategy horovod: their mean instead of their sum");
}

void add_options(config::Table& table, ZeroOptions& options) {
  table.add(
      "zero.group_size", &options.group_size,
      "of zero1, zero2 and zero3: consecutive ranks that share the model out among them, each "
      "group all of it; 0: all ranks, with hybrid_shard those of a node",
      count_from(0));
}

void add_options(config::Table& table, LocalSgdOptions& options) {
  table.add("local_sgd.period", &options.period,
            "of local_sgd and post_local_sgd: steps between averages of the parameters",
            count_from(1));
  table.add("local_sgd.warmup_steps", &options.warmup_steps,
            "of post_local_sgd: steps that average gradients first", count_from(0));
}

void add_options(config::Table& table, DiLoCoOptions& options) {
  table.add("diloco.period", &options.period,
            "of diloco: steps between steps of the outer optimizer", count_from(1));
  table.add("diloco.warmup_steps", &options.warmup_steps,
            "of diloco: steps that average gradients first", count_from(0));
  table.add("diloco.outer_lr", &options.outer_lr, "of diloco: rate of the outer SGD", above(0.0));
  table.add("diloco.outer_momentum", &options.outer_momentum,
            "of diloco: Nesterov momentum of the outer SGD", from_to_below(0.0, 1.0));
}

void add_options(config::Table& table, MeshOptions& options) {
  table.add("mesh.pipeline", &options.pipeline,
            "of pipelines: ranks that the model's stages are spread over; -1: the ranks that "
            "mesh.data leaves",
            axis_size());
  table.add("mesh.data", &options.data,
            "of pipelines: replicas of the pipeline; -1: the ranks that mesh.pipeline leaves, or 1",
            axis_size());
}

void add_options(config::Table& table, PipelineSection& options) {
  table.add("pipeline.micro_batches", &options.micro_batches,
            "of pipelines: batches of each replica that make one optimizer step, each of "
            "data.batch_size samples; 0: trainer.accumulate_grad_batches if it is above 1, else "
            "two for each rank of the pipeline axis",
            config::between(int64_t{0}, int64_t{1000000}));
  table.add("pipeline.schedule", &options.schedule,
            "of strategy pipeline: order of forward and backward passes; docs/schedules.md",
            one_of(layout::schedule_names()));
  table.add("pipeline.chunks", &options.chunks, "of interleaved and bfs: stages on each rank; 0: 2",
            config::between(int64_t{0}, int64_t{1000000}));
  table.add("pipeline.cut", &options.cut,
            "of pipelines: names of the blocks of each stage, with bars between stages "
            "(docs/pipelines.md); empty: stages of about equal numbers of parameters");
}

}  // namespace troika::parallel
