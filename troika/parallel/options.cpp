#include "troika/parallel/options.h"

#include "troika/base/config.h"
#include "troika/layout/context_method.h"
#include "troika/layout/plan.h"
#include "troika/layout/schedules/table.h"

namespace troika::parallel {

using config::above;
using config::above_to;
using config::count_from;
using config::from_to_below;
using config::one_of;

namespace {

constexpr double kWeekSeconds = 7 * 24 * 3600;

config::Rule axis_size() {
  return {"an integer >= 1, or -1 for the rest of the ranks", [](const config::Value& value) {
            const auto size = std::get<int64_t>(value);
            return size >= 1 || size == -1;
          }};
}

std::vector<std::string> schedules() {
  auto names = layout::schedule_names();
  names.emplace_back(layout::kAutomaticSchedule);
  return names;
}

}  // namespace

void add_options(config::Table& table, DdpOptions& options) {
  table.add("ddp.find_unused_parameters", &options.find_unused_parameters,
            "allow parameters that get no gradient in some steps");
  table.add("ddp.static_graph", &options.static_graph,
            "the parameters that get gradients are the same in every step as in the first one");
  table.add("ddp.broadcast_buffers", &options.broadcast_buffers,
            "all processes get rank 0's buffers (batch-norm statistics) after each step");
  auto& codec = options.codec;
  table.add("ddp.hook", &codec.name, "compression of gradients in their all-reduce",
            one_of({"none", "fp16", "bf16", "powersgd", "topk", "int8", "onebit", "randomk",
                    "dither", "natural"}));
  table.add("ddp.error_feedback", &codec.error_feedback,
            "all but fp16 and bf16: add the compression error to the next gradient");
  table.add("ddp.powersgd_rank", &codec.rank, "powersgd: rank of the approximation", count_from(1));
  table.add("ddp.powersgd_start_step", &codec.start_step,
            "powersgd: number of steps without compression at the start", count_from(0));
  table.add("ddp.powersgd_warm_start", &codec.warm_start,
            "powersgd: start from the factors of the step before");
  table.add("ddp.topk_density", &codec.density,
            "topk and randomk: fraction of the elements that is sent", above_to(0.0, 1.0));
  table.add("ddp.int8_block", &codec.block,
            "int8, dither and natural: number of elements that share a scale", count_from(1));
}

void add_options(config::Table& table, HorovodOptions& options) {
  table.add("horovod.backward_passes_per_step", &options.backward_passes_per_step,
            "strategy horovod: number of batches whose summed gradients make one optimizer step",
            count_from(1));
  table.add("horovod.average_aggregated_gradients", &options.average_aggregated_gradients,
            "strategy horovod: average these gradients instead of summing them");
}

void add_options(config::Table& table, ZeroOptions& options) {
  table.add("zero.stage", &options.stage,
            "pipelines, tp and 3d: what is sharded over the replicas of a stage; 1: optimizer "
            "states; 2: also "
            "gradients; 3: also parameters; 0: nothing",
            config::between(int64_t{0}, int64_t{3}));
  table.add(
      "zero.group_size", &options.group_size,
      "zero1, zero2, zero3 and zero.stage: number of consecutive ranks over which the model is "
      "sharded; each group of this size has the whole model; 0: all ranks, with hybrid_shard those "
      "of a node",
      count_from(0));
}

void add_options(config::Table& table, LocalSgdOptions& options) {
  table.add("local_sgd.period", &options.period,
            "local_sgd and post_local_sgd: number of steps between averages of the parameters",
            count_from(1));
  table.add("local_sgd.warmup_steps", &options.warmup_steps,
            "post_local_sgd: number of steps at the start that average gradients", count_from(0));
}

void add_options(config::Table& table, DiLoCoOptions& options) {
  table.add("diloco.inner_steps", &options.inner_steps,
            "diloco: number of steps of each replica by itself between two outer steps of the same "
            "parameter",
            count_from(1));
  table.add("diloco.warmup_steps", &options.warmup_steps,
            "diloco: number of steps at the start that average gradients", count_from(0));
  table.add("diloco.outer_lr", &options.outer_lr, "diloco: learning rate of the outer SGD",
            above(0.0));
  table.add("diloco.outer_momentum", &options.outer_momentum,
            "diloco: Nesterov momentum of the outer SGD", from_to_below(0.0, 1.0));
  table.add("diloco.fragments", &options.fragments,
            "diloco: number of parts of the model, which step at different times; divides "
            "diloco.inner_steps",
            count_from(1));
  table.add("diloco.delay", &options.delay,
            "diloco: number of inner steps that replicas make while their changes are averaged; "
            "below diloco.inner_steps / diloco.fragments",
            count_from(0));
  table.add("diloco.mixing", &options.mixing,
            "diloco: part of a replica's own weights in its weights after an outer step",
            config::between(0.0, 1.0));
  table.add("diloco.codec", &options.codec, "diloco: compression of the changes that are averaged",
            one_of({"none", "fp16", "bf16", "int8"}));
}

void add_options(config::Table& table, ServerSection& options) {
  table.add("server.consistency", &options.consistency,
            "parameter_server: sequential: a step begins when all processes have finished the one "
            "before; bounded: server.delay steps earlier; eventual: at once",
            one_of({"sequential", "bounded", "eventual"}));
  table.add("server.delay", &options.delay,
            "consistency bounded: number of steps that processes may be apart", count_from(0));
  table.add("server.servers", &options.servers,
            "parameter_server, downpour, sandblaster: number of servers, which are threads of the "
            "processes; 0: "
            "one in each process; byteps: number of servers that were launched; each process has "
            "one more",
            config::between(int64_t{0}, int64_t{4096}));
  table.add("server.replicas", &options.replicas,
            "parameter_server, downpour, sandblaster: number of copies of each range of parameters "
            "on other servers",
            count_from(0));
  table.add("server.push_filters", &options.push_filters,
            "parameter_server, downpour: filters of gradients on their way to the servers "
            "(docs/parameter-server.md); empty: none");
  table.add("server.pull_filters", &options.pull_filters,
            "parameter_server, downpour: filters of parameters on their way to the processes; "
            "empty: none");
  table.add("server.limit_seconds", &options.limit_seconds,
            "parameter_server, downpour, sandblaster, byteps: a process that is silent for this "
            "number of seconds is "
            "lost",
            above(0.0));
}

void add_options(config::Table& table, BytePsSection& options) {
  table.add("byteps.partition_bytes", &options.partition_bytes,
            "byteps: largest piece of gradients that one server sums, in bytes",
            config::at_least(int64_t{64}));
  table.add("byteps.credit_bytes", &options.credit_bytes,
            "byteps: bytes that a process may have pushed before servers have confirmed them; a "
            "larger piece goes alone; 0: no limit",
            config::at_least(int64_t{0}));
  table.add("byteps.priorities", &options.priorities,
            "byteps: gradients of the layers that the next forward pass uses first go first");
  table.add("byteps.links", &options.links,
            "byteps: bandwidths of the links of launched servers, then of processes, or of "
            "machines where byteps.local_sums sums first, as numbers with commas; measured: they "
            "are measured at the start of a run; empty: they are equal");
  table.add(
      "byteps.cross_barrier", &options.cross_barrier,
      "byteps: the optimizer steps parameters when their mean gradient is there, and the next "
      "forward pass of a block waits for its own parameters only; not with clipping by norm, "
      "loss scaling, masters of weights, ema, statistics of gradients or an optimizer of "
      "configure_optimizers()");
  table.add("byteps.asynchronous", &options.asynchronous,
            "byteps: processes do not wait for each other; servers keep the parameters and add the "
            "change of each process's step at once");
  table.add("byteps.local_sums", &options.local_sums,
            "byteps: with processes on several machines, those of one machine sum their gradients "
            "first, as they are or in 16 bits, and one of them exchanges the sums with servers; "
            "none: each process exchanges its own",
            config::one_of({"none", "plain", "fp16", "bf16"}));
  table.add(
      "byteps.momentum", &options.momentum,
      "byteps: Nesterov momentum of gradients before they are encoded, with optim.momentum 0; "
      "0: none",
      config::from_to_below(0.0, 1.0));
  table.add(
      "byteps.dither_norm", &options.dither_norm,
      "byteps: the scale of a block with ddp.hook dither or natural: its largest magnitude, or "
      "its L2 norm",
      config::one_of({"max", "l2"}));
}

void add_options(config::Table& table, DownpourSection& options) {
  table.add("downpour.n_fetch", &options.n_fetch,
            "downpour: number of steps from one fetch of the parameters to the next one",
            count_from(1));
  table.add("downpour.n_push", &options.n_push,
            "downpour: number of steps whose gradients are added up for one push", count_from(1));
  table.add("downpour.local_rate", &options.local_rate,
            "downpour: rate of a replica's own SGD steps between fetches, as a multiple of the "
            "learning rate; 0: no such steps",
            config::at_least(0.0));
  table.add("downpour.overlap", &options.overlap,
            "downpour: compute the next step while parameters are fetched; false: wait for them");
  table.add("downpour.warm_start_steps", &options.warm_start_steps,
            "downpour: number of steps that replica 0 makes before the others begin",
            count_from(0));
}

void add_options(config::Table& table, FtDdpSection& options) {
  table.add("ft_ddp.min_replicas", &options.min_replicas,
            "ft_ddp: the least number of replicas that begin a step; with fewer, the others wait",
            count_from(1));
  table.add("ft_ddp.join_timeout_seconds", &options.join_timeout_seconds,
            "ft_ddp: how long replicas wait for others, at the start for all that were launched, "
            "later for ft_ddp.min_replicas",
            config::between(0.0, kWeekSeconds));
  table.add("ft_ddp.heartbeat_timeout_seconds", &options.heartbeat_timeout_seconds,
            "ft_ddp: a replica that is silent for this number of seconds is lost",
            above_to(0.0, kWeekSeconds));
}

void add_options(config::Table& table, SwarmSection& options) {
  table.add("swarm.run", &options.run,
            "swarm: name of the collaborative run, the same on all its peers");
  table.add("swarm.peers", &options.peers,
            "swarm: HOST:PORT of peers to connect to; one suffices, because peers tell each other "
            "about the rest; empty: others connect to this peer");
  table.add("swarm.listen", &options.listen,
            "swarm: HOST:PORT at which this peer listens, HOST a numeric address of this machine "
            "or 0.0.0.0, PORT 0 for any free port");
  table.add("swarm.announce", &options.announce,
            "swarm: HOST:PORT at which others reach this peer, if it is not that of swarm.listen");
  table.add("swarm.mode", &options.mode,
            "swarm: client: a peer that others cannot connect to; it contributes, but reduces "
            "nothing; auxiliary: a peer that trains nothing, and reduces for the others",
            one_of({"node", "client", "auxiliary"}));
  table.add("swarm.min_peers", &options.min_peers,
            "swarm: number of peers, this one included, for which it waits before its first step, "
            "for comm.join_timeout_seconds at most",
            count_from(1));
  table.add("swarm.aggregation", &options.aggregation,
            "swarm: how reducers combine gradients; centred_clip: so that few lying peers cannot "
            "move the result far; the same on all peers",
            one_of({"mean", "centred_clip"}));
  table.add("swarm.target_group_size", &options.target_group_size,
            "swarm: a step takes two rounds in groups of about so many peers, if there are more "
            "and at least 12; 0: one group of all; the same on all peers; only with "
            "swarm.aggregation mean",
            count_from(0));
  table.add("swarm.grad_compression", &options.grad_compression,
            "swarm: compression of gradients on their way to reducers, and of their means on the "
            "way back; the same on all peers; a step of one peer alone compresses nothing",
            one_of({"none", "fp16", "bf16", "int8"}));
  table.add("swarm.grad_compression_threshold", &options.grad_compression_threshold,
            "swarm: gradients of parameters with fewer elements, and all buffers, are not "
            "compressed; the same on all peers",
            count_from(0));
  table.add("swarm.delay_optimizer_step", &options.delay_optimizer_step,
            "swarm: peers compute the gradients of a step while those of the step before are "
            "averaged, so each update is one step late; the same on all peers");
  table.add(
      "swarm.use_local_updates", &options.use_local_updates,
      "swarm: peers train by themselves, and a step is a round, after which an outer SGD steps "
      "by the mean of their changes, with diloco.outer_lr, outer_momentum, fragments, delay "
      "and mixing; the same on all peers");
  table.add("swarm.bandwidth_megabits", &options.bandwidth_megabits,
            "swarm: bandwidth of this peer's link in Mbit/s, each way, which decides how much of "
            "the gradient it reduces; 0: not known; all peers should tell it, or none",
            config::at_least(0.0));
  table.add("swarm.max_upload_megabits", &options.max_upload_megabits,
            "swarm: Mbit/s that this peer sends at most, 1 or more; 0: no limit",
            config::at_least(0.0));
  table.add("swarm.max_download_megabits", &options.max_download_megabits,
            "swarm: Mbit/s that this peer receives at most, 1 or more; 0: no limit",
            config::at_least(0.0));
  table.add(
      "swarm.processor_share", &options.processor_share,
      "swarm: part of the time in which this peer computes micro-batches; it rests after each",
      above_to(0.0, 1.0));
  table.add("swarm.pause_file", &options.pause_file,
            "swarm: while a file of this name exists, the peer computes nothing, and follows the "
            "others; empty: it never pauses");
  table.add("swarm.max_load_of_others", &options.max_load_of_others,
            "swarm: the peer pauses while other programs use more than this share of the machine's "
            "processors; 1: it never pauses for them",
            config::between(0.0, 1.0));
  table.add("swarm.identity", &options.identity,
            "swarm: file (mode 0600) of the secret key of this peer, which is made if it does not "
            "exist; empty: a new key at each start");
  table.add("swarm.authority", &options.authority,
            "swarm: KEY@HOST:PORT of the authority whose tokens all peers must have, as troika "
            "swarm authority prints it; empty: all that hold the run's secret take part");
  table.add("swarm.discovery_seconds", &options.discovery_seconds,
            "swarm: how long a peer looks for others before its first step",
            config::between(0.0, kWeekSeconds));
  table.add("swarm.matchmaking_seconds", &options.matchmaking_seconds,
            "swarm: how long a group waits for peers at most; measured times make it shorter",
            above_to(0.0, kWeekSeconds));
  table.add("swarm.averaging_seconds", &options.averaging_seconds,
            "swarm: a peer that finds no group for this time makes the step alone",
            above_to(0.0, kWeekSeconds));
  table.add("swarm.sender_timeout_seconds", &options.sender_timeout_seconds,
            "swarm: a peer that is silent for this time during an average is left out of it; "
            "measured times make it shorter",
            above_to(0.0, kWeekSeconds));
}

void add_options(config::Table& table, MeshOptions& options) {
  table.add(
      "mesh.axes", &options.axes,
      "pipelines, tp, cp and 3d: all axes, outermost first, in place of their sizes; a pipeline "
      "may have one number of replicas for each of its ranks, as in pipeline=3 data=2-1-1");
  table.add("mesh.pipeline", &options.pipeline,
            "pipelines, 3d and downpour: number of ranks that the model's stages are spread over; "
            "-1: the ranks that mesh.data leaves; 3d: see docs/tensor-parallelism.md",
            axis_size());
  table.add("mesh.data", &options.data,
            "pipelines, tp, cp, 3d and downpour: number of replicas of the model; -1: the ranks "
            "that mesh.pipeline, mesh.tensor and mesh.context leave, or 1",
            axis_size());
  table.add("mesh.tensor", &options.tensor,
            "tp, 3d and downpour: number of ranks that compute each layer together "
            "(docs/tensor-parallelism.md); -1: the ranks that mesh.data leaves",
            axis_size());
  table.add("mesh.sequence_parallel", &options.sequence_parallel,
            "tp and 3d: between layers, each rank computes its share of the tokens, in norms and "
            "dropout");
  table.add("mesh.tensor_overlap", &options.tensor_overlap,
            "tp, 3d and downpour: two micro-batches of a step run forward at the same time: one "
            "computes while the other's sums over the tensor axis run; takes the memory of both "
            "(docs/tensor-parallelism.md)");
  table.add("mesh.context", &options.context,
            "cp, tp and 3d: number of ranks that each compute a part of the tokens of a sample "
            "(docs/context-parallelism.md); -1: with cp the ranks that mesh.data leaves, otherwise "
            "1",
            axis_size());
  table.add("mesh.context_method", &options.context_method,
            "how these ranks compute attention: keys and values go round a ring, or an all-to-all "
            "gives each rank all tokens of some heads",
            config::one_of(layout::context_method_names()));
}

void add_options(config::Table& table, PipelineSection& options) {
  table.add("pipeline.micro_batches", &options.micro_batches,
            "pipelines: micro-batches of each replica in an optimizer step, each of "
            "data.batch_size samples; 0: trainer.accumulate_grad_batches if it is above 1, "
            "otherwise two for each rank of the pipeline axis; with pipedream one, with "
            "pipedream_2bw one for each rank",
            config::between(int64_t{0}, int64_t{1000000}));
  table.add("pipeline.schedule", &options.schedule,
            "strategies pipeline and 3d: order of forward and backward passes; docs/schedules.md",
            one_of(schedules()));
  table.add("pipeline.chunks", &options.chunks,
            "interleaved and bfs: number of stages on each rank; 0: 2",
            config::between(int64_t{0}, int64_t{1000000}));
  table.add("pipeline.cut", &options.cut,
            "pipelines: names of the blocks of each stage, with bars between stages "
            "(docs/pipelines.md); empty: stages chosen by pipeline.cut_by");
  table.add("pipeline.cut_by", &options.cut_by,
            "pipelines without pipeline.cut: the quantity that is about equal for all stages; "
            "time: measured at the start of a run; schedule auto always cuts by time",
            one_of({"parameters", "time", "flops", "bytes"}));
  table.add("pipeline.activations", &options.activations,
            "schedule auto: number of micro-batches whose activations a rank may keep at a time; "
            "0: the number of ranks of the pipeline axis, as with 1f1b",
            config::at_least(0.0));
  table.add("pipeline.vertical_sync", &options.vertical_sync,
            "pipedream: a micro-batch uses weights of the same step on all stages, instead of each "
            "stage's newest ones");
  table.add("pipeline.stash_weights", &options.stash_weights,
            "pipedream: the backward pass of a micro-batch uses the weights of its forward pass; "
            "false, for comparisons: it uses the stage's newest weights, and gradients are those "
            "of no weights");
  table.add("pipeline.in_flight", &options.in_flight,
            "pipedream and pipedream_2bw: micro-batches that a stage has in flight for each stage "
            "that follows; 2 hides messages where links are busy half of the time, and keeps more "
            "versions of the weights",
            config::between(int64_t{1}, int64_t{1000}));
  table.add("pipeline.warm_up", &options.warm_up,
            "pipedream and pipedream_2bw on stages of different numbers of replicas: the forward "
            "passes before a stage's first backward pass; runtime: those of PipeDream's runtime; "
            "noam: as many as the paper's number of micro-batches in the pipeline allows, which "
            "is more where the ranks are no multiple of the first stage's replicas",
            one_of(layout::warm_up_names()));
  table.add("pipeline.steps_by_replicas", &options.steps_by_replicas,
            "pipedream on stages of different numbers of replicas: a stage steps after a "
            "micro-batch of each of its replicas, with a learning rate in proportion to their "
            "number, instead of with all stages after a step's micro-batches");
}

}  // namespace troika::parallel
