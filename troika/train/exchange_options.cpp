#include "troika/train/exchange_options.h"

#include "troika/net/hello.h"

namespace troika::train {

namespace {

using config::above;
using config::above_to;
using config::between;
using config::count_from;
using config::from_to_below;
using config::one_of;

// Beyond these a slip is likelier than a wish, and milliseconds would overflow.
constexpr double kWeekSeconds = 7 * 24 * 3600;
constexpr double kMaxMegabytes = 1e6;

void add_comm(config::Table& table, TrainOptions::Comm& comm) {
  table.add("comm.backend", &comm.backend,
            "auto: shared memory in a node; mpi under mpirun, else tcp, between nodes",
            one_of({"auto", "shm", "tcp", "gloo", "mpi"}));
  table.add("comm.protection", &comm.protection,
            "of tcp: how messages are protected from who can read the network; nobody without the "
            "run's secret can connect in any case",
            one_of({"none", "authenticated", "encrypted"}));
  table.add("comm.streams", &comm.streams,
            "of tcp: connections of each pair of ranks for long messages; more than one where one "
            "does not fill the link",
            between(int64_t{1}, int64_t{net::kMostStreams}));
  table.add("comm.algorithm", &comm.algorithm,
            "algorithm of all-reduce; auto: the fastest one by measurements of the links",
            one_of({"auto", "ring", "recursive_doubling", "rabenseifner", "double_tree",
                    "hierarchical"}));
  table.add("comm.timeout_seconds", &comm.timeout_seconds,
            "a collective fails after this time, and names the ranks that did not come",
            above_to(0.0, kWeekSeconds));
  table.add("comm.stall_warning_seconds", &comm.stall_warning_seconds,
            "a warning names the ranks that a collective waits for after this time; 0: never",
            between(0.0, kWeekSeconds));
  table.add("comm.join_timeout_seconds", &comm.join_timeout_seconds,
            "the start fails if not all processes have come after this time",
            above_to(0.0, kWeekSeconds));
  table.add("comm.bucket_megabytes", &comm.bucket_megabytes,
            "gradients are averaged in buckets of so many MiB", above_to(0.0, kMaxMegabytes));
  table.add("comm.first_bucket_megabytes", &comm.first_bucket_megabytes,
            "MiB of the bucket that is averaged first", above_to(0.0, kMaxMegabytes));
}

void add_ddp(config::Table& table, parallel::DataParallelOptions& ddp) {
  table.add("ddp.find_unused_parameters", &ddp.find_unused_parameters,
            "allow parameters that get no gradient in some steps");
  table.add("ddp.static_graph", &ddp.static_graph,
            "every step gives the same parameters gradients as the first one does");
  table.add("ddp.broadcast_buffers", &ddp.broadcast_buffers,
            "all processes get rank 0's buffers (batch-norm statistics) after each step");
  auto& codec = ddp.codec;
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
  table.add("ddp.topk_density", &codec.density, "of topk: share of the numbers that is sent",
            above_to(0.0, 1.0));
  table.add("ddp.int8_block", &codec.block, "of int8: numbers that share a scale", count_from(1));
}

void add_strategies(config::Table& table, TrainOptions& options) {
  table.add("horovod.backward_passes_per_step", &options.horovod.backward_passes_per_step,
            "of strategy horovod: batches whose summed gradients make one optimizer step",
            count_from(1));
  table.add("horovod.average_aggregated_gradients", &options.horovod.average_aggregated_gradients,
            "of strategy horovod: their mean instead of their sum");
  table.add(
      "zero.group_size", &options.zero.group_size,
      "of zero1, zero2 and zero3: consecutive ranks that share the model out among them, each "
      "group all of it; 0: all ranks, with hybrid_shard those of a node",
      count_from(0));
  table.add("local_sgd.period", &options.local_sgd.period,
            "of local_sgd and post_local_sgd: steps between averages of the parameters",
            count_from(1));
  table.add("local_sgd.warmup_steps", &options.local_sgd.warmup_steps,
            "of post_local_sgd: steps that average gradients first", count_from(0));
  auto& diloco = options.diloco;
  table.add("diloco.period", &diloco.period,
            "of diloco: steps between steps of the outer optimizer", count_from(1));
  table.add("diloco.warmup_steps", &diloco.warmup_steps,
            "of diloco: steps that average gradients first", count_from(0));
  table.add("diloco.outer_lr", &diloco.outer_lr, "of diloco: rate of the outer SGD", above(0.0));
  table.add("diloco.outer_momentum", &diloco.outer_momentum,
            "of diloco: Nesterov momentum of the outer SGD", from_to_below(0.0, 1.0));
}

}  // namespace

void add_exchange(config::Table& table, TrainOptions& options) {
  add_comm(table, options.comm);
  add_ddp(table, options.ddp);
  add_strategies(table, options);
}

}  // namespace troika::train
