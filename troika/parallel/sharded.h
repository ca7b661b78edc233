// ZeRO: data parallelism in which ranks shard optimizer states, gradients and parameters
// (Rajbhandari et al., SC 2020, arXiv 1910.02054).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "troika/comm/group.h"
#include "troika/nn/block_wrapper.h"
#include "troika/nn/module_watch.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/exchange.h"

namespace troika::compat {
class DeferredInit;
}  // namespace troika::compat

namespace troika::parallel {

class BlockParameters;
class ParameterShards;
class Reducer;

struct ShardedOptions {
  // The stage of ZeRO. 1: shards the optimizer's states, 2: gradients too, 3: parameters too.
  int stage = 2;
  // The number of consecutive ranks that form a sharding group; each group holds the whole model.
  // Must divide the number of ranks. 0: all ranks.
  int group_size = 0;
  // The result of optim::shard_multiple() for the optimizer.
  int64_t shard_multiple = 1;
  // Stage 3: a block with fewer elements keeps its parameters in full, since small messages cost as
  // much as larger ones.
  int64_t keep_elements = 10'000;
  // Stage 3: gather_parameters() gathers all parameters at once, and finish_backward() releases
  // them. For any module, such as a stage of a pipeline, whose passes need all of its parameters in
  // each micro-batch.
  bool gathers_at_once = false;
  // codec, hook and bucket_order must not be set.
  DataParallelOptions data_parallel = {};
  // Stage 3: makes the values of a module that has none yet, parameter by parameter; each rank
  // keeps only what it owns. Must outlive the constructor.
  compat::DeferredInit* values = nullptr;
};

// Makes the same steps as DataParallel, up to rounding, with the same bits on all ranks:
//
//   parallel::Sharded sharded(*model, group, {.stage = 2});
//   auto optimizer = optim::make_optimizer(sharded.parameters(), options);
//   loss.backward(); sharded.finish_backward(); sharded.step(*optimizer);
//
// Parameters lie in buckets, and rank r owns the r-th of d equal parts of each bucket. Gradients
// are averaged into the owner's part only, by a reduce-scatter that overlaps the backward pass. The
// optimizer steps the shards of parameters that this rank owns, and step() all-gathers the updated
// parameters. Both collectives together move the same number of bytes as DataParallel's all-reduce.
// With psi parameters in float32, d ranks, and Adam's two states, a rank holds 8 psi + 8 psi / d
// bytes in stage 1 and 4 psi + 12 psi / d in stage 2 (section 3), besides buckets that are being
// averaged; stage 2 has at most two of these.
//
// After finish_backward() the module's parameters have no .grad; the shards hold the mean. So a
// step always starts without gradients, and a parameter without gradient on all ranks is not
// stepped. To accumulate gradients of several micro-batches, use no_sync(); under it stage 2 keeps
// whole gradients.
//
// Stage 3 needs a nn::Model. Each bucket has the parameters of one block of the model, and a rank
// holds a block's full parameters only while the block runs: they are gathered before its forward
// and before its backward pass, while the previous block runs, and released afterwards. The last
// block keeps its parameters between its forward and backward pass. This moves up to 1.5 times the
// bytes of an all-reduce, and a rank holds 16 psi / d bytes (section 7.2.2), besides two blocks.
// Blocks that nn::recompute() recomputes in segments are gathered for the recomputation as well.
//
// With ShardedOptions::gathers_at_once, parameters are present from gather_parameters() to the next
// finish_backward() or step(), and a step gathers each of them once, for all of its micro-batches.
//
// Between synchronize_replicas() and the next forward pass that keeps a graph, all parameters are
// present, for validation and checkpoints. At all other times, from construction on, parameters of
// blocks that do not run have no memory, and reading them is undefined. During that time all ranks
// must make the same forward passes, with empty batches if they have no data. After this object's
// destruction the model may be used only if synchronize_replicas() came before.
//
// In groups of g ranks (hybrid sharding: FSDP's HYBRID_SHARD; Zhao et al., VLDB 2023, arXiv
// 2304.11277, section 3.2.2), d is g in the memory formulas, and parameters are gathered within the
// group only. Gradients are averaged within the group first; then each rank averages its own part
// with the ranks at the same place in other groups. Only this second average crosses groups; for n
// groups it moves 2 (n - 1) / (n g) of the model's bytes.
//
// LARS and LAMB need norms of whole parameters:
//
//   optimizer->complete_sums_by([&](const at::Tensor& sums) {
//     sharded.reducer().sum(sums, "norms of parameters");
//   });
//
// adamw_8bit quantizes whole blocks of elements; set ShardedOptions::shard_multiple for it.
class Sharded : public Exchange {
 public:
  // Checks and copies as DataParallel's constructor does. Parameters move to other memory, bucket
  // by bucket; stage 3 frees the original memory at the same time, so construction takes the memory
  // of one bucket besides the model. With ShardedOptions::values it takes memory for this rank's
  // shards and one parameter. Throws Error(usage) for stage 3 of a module that is not a nn::Model,
  // unless it gathers at once. Blocks.
  Sharded(torch::nn::Module& module, comm::Group group, const ShardedOptions& options);
  ~Sharded() override;

  std::vector<optim::Parameter> parameters() const override;
  // True in stage 3.
  bool shards_parameters() const override { return options_.stage == 3; }
  const GroupReducer& reducer() const override { return over_shards_; }
  void spread_parameters() override;
  void gather_parameters() override;

  // Throws Error(usage) in stage 3 if a rank has no weight.
  bool begin_step(double weight) override;
  void finish_backward() override;
  void step_by(const std::function<void()>& update) override;
  void synchronize_replicas() override;
  // Returns an empty list: there is no such state.
  optim::NamedTensors state() const override { return {}; }
  // Also accepts the state of a DataParallel without codec; its bucket order is ignored.
  void load_state(const optim::NamedTensors& state) override;
  void continue_step() override;
  bool set_syncing(bool syncing) override;

  // Returns the ranks that together hold one copy of the model, this rank included.
  const comm::Group& sharing_group() const { return sharing_; }

  // Returns the sum over all groups of this object: gradients, parameters and everything else.
  comm::Counters counters() const;

 private:
  // Sums over the first sharding group only, and gives every rank that result: other groups hold
  // the same numbers, but could add them up in another order.
  class OverShards : public GroupReducer {
   public:
    explicit OverShards(const Sharded& sharded) : sharded_(sharded) {}
    void sum(const at::Tensor& numbers, std::string_view label) const override;
    void max(const at::Tensor& numbers, std::string_view label) const override;

   private:
    const Sharded& sharded_;
  };

  void release_parameters();

  torch::nn::Module& module_;
  nn::ModuleWatch watch_;
  comm::Group group_;
  const ShardedOptions options_;
  comm::Group sharing_;                // of group_size ranks, or group_
  std::optional<comm::Group> copies_;  // ranks with the same shards; none if not hybrid
  const OverShards over_shards_{*this};
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<ParameterShards> shards_;
  std::shared_ptr<BlockParameters> blocks_;  // stage 3 block by block only
  nn::WrapperGuard gathering_;               // the same
  int buffers_from_ = 0;  // the rank whose buffers are broadcast at the end of this step
};

}  // namespace troika::parallel
