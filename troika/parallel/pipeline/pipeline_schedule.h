// The options of a pipeline, and the passes and stages that follow from them.
#pragma once

#include <c10/core/MemoryFormat.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "troika/comm/group.h"
#include "troika/compat/deferred_init.h"
#include "troika/layout/mesh.h"
#include "troika/layout/schedules/schedule.h"
#include "troika/layout/schedules/stage_weights.h"
#include "troika/layout/stage_cut.h"
#include "troika/nn/model.h"
#include "troika/nn/precision.h"
#include "troika/parallel/exchange.h"
#include "troika/parallel/tensor/split_table.h"

namespace troika {
class Trace;
}

namespace troika::parallel {

struct PipelineOptions {
  // A name of layout::schedule_table().
  std::string schedule = "1f1b";
  int micro_batches = 1;  // per step, of each replica of the pipeline
  // Other than `synchronous`: without flushes, in the order of schedule 1f1b
  // (layout/schedules/stage_weights.h).
  layout::StageWeights weights = layout::StageWeights::synchronous;
  int in_flight = 1;  // without flushes: see layout::AsynchronousPipeline
  layout::WarmUp warm_up_by = layout::WarmUp::runtime;  // the same
  bool steps_by_replicas = false;                       // the same
  int chunks = 0;  // stages per rank; 0: the schedule's default
  // A schedule in text form (layout::read_schedule()) in place of a name; empty: none.
  std::string actions = {};
  // A layout string (layout::parse_cut()), which may have empty stages; empty: stages of about
  // equal numbers of parameters, each with a block at least.
  std::string cut = {};
  // The format in which 4-d tensors travel between stages.
  at::MemoryFormat memory_format = at::MemoryFormat::Contiguous;
  // Forward passes and losses run under this precision's autocast; none: under the autocast of the
  // calling thread.
  std::optional<nn::NumericPrecision> precision = {};
  // Makes the exchange of a part of a stage, on a group of its own along the data axis; empty: a
  // DataParallel.
  std::function<std::unique_ptr<Exchange>(torch::nn::Module& stage, const comm::Group& data)>
      make_exchange = {};
  // Whether these exchanges shard parameters over the replicas.
  bool shards_over_replicas = false;
  // Whether each rank must have a single exchange: one stage, without parameters that several
  // stages use.
  bool one_part = false;
  // On a mesh with a tensor axis: how it cuts the model's layers, and TensorOptions::sequence.
  SplitTable split_table = {};
  bool sequence_parallel = false;
  // Runs forward passes of two micro-batches at the same time (tensor/lanes.h), in the order of
  // layout::order_in_pairs(), or where those of micro-batches 2i and 2i + 1 follow each other in
  // `actions`.
  bool tensor_overlap = false;
  // Makes the values of a model that has none yet, from the state of rank 0's generator. Must
  // outlive the constructor of the pipeline. Null: the model has values.
  compat::DeferredInit* values = nullptr;
  // Records the actions of runs (action_times.h); may be null.
  Trace* trace = nullptr;
};

// Returns the passes of the options' schedule on the ranks of the mesh's pipeline axis, without
// messages; of a pipeline without flushes, those of as many micro-batches as show all messages that
// are in flight at a time. Throws Error(usage) for a schedule that does not support these numbers
// of ranks, micro-batches and blocks, that does not train, or whose stages take micro-batches in
// different orders, since messages have no numbers; for an expert axis of the mesh; for more
// replicas of a stage than micro-batches that they share; for weights of a pipeline without flushes
// with another schedule than 1f1b or exchanges with shards; for a tensor or context axis with
// stages of different numbers of replicas, or weights of a pipeline without flushes; and for
// tensor_overlap without a tensor axis or with a context axis.
layout::Schedule passes_for(const PipelineOptions& options, const layout::Mesh& mesh,
                            size_t blocks);

// Returns the ends of the stages that these passes run. Throws Error(usage) for a cut into another
// number of stages, and where layout::parse_cut() does.
layout::StageEnds ends_for(const nn::Model& model, const std::string& cut,
                           const layout::Schedule& passes);

// The options' pipeline without flushes, on a mesh.
layout::AsynchronousPipeline asynchronous_pipeline(const PipelineOptions& options,
                                                   const layout::Mesh& mesh);

}  // namespace troika::parallel
