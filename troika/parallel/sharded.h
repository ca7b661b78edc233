// Data parallelism whose ranks share out what training keeps in memory: ZeRO (Rajbhandari et al.,
// SC 2020, arXiv 1910.02054).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "troika/comm/group.h"
#include "troika/compat/deferred_init.h"
#include "troika/nn/block_wrapper.h"
#include "troika/nn/module_watch.h"
#include "troika/parallel/data_parallel.h"
#include "troika/parallel/exchange.h"

namespace troika::parallel {

class BlockParameters;
class ParameterShards;
class Reducer;

struct ShardedOptions {
  // Shards 1: the optimizer's states, 2: gradients too, 3: parameters too.
  int stage = 2;
  // Consecutive ranks that shard it among them; each such group has all of it. It divides
  // the number of ranks. 0: all ranks.
  int group_size = 0;
  // optim::piece_multiple() of the optimizer.
  int64_t piece_multiple = 1;
  // Stage 3: blocks of fewer elements keep their parameters, since messages of few bytes cost as
  // much as larger ones.
  int64_t keep_elements = 10'000;
  // Without codec, hook and bucket_order.
  DataParallelOptions data_parallel = {};
  // Stage 3: where the module has no values yet, what makes them. They are made parameter by
  // parameter, of which each rank keeps what it owns. Outlives the constructor.
  compat::DeferredInit* values = nullptr;
};

// A step is DataParallel's, up to rounding, and the same bits on all ranks:
//
//   parallel::Sharded sharded(*model, group, {.stage = 2});
//   auto optimizer = optim::make_optimizer(sharded.parameters(), options);
//   loss.backward(); sharded.finish_backward(); sharded.step(*optimizer);
//
// Parameters lie in buckets, of each of which rank r owns the r-th block. Gradients are averaged
// there alone (a reduce-scatter, beside the backward pass), the optimizer steps the pieces of
// parameters that this rank owns, and step() gathers what all ranks stepped: in all the bytes of
// DataParallel's all-reduce. With psi parameters in float32, d ranks, and Adam's two states, a rank
// holds 8 psi + 8 psi / d bytes in stage 1 and 4 psi + 12 psi / d in stage 2 (section 3), besides
// buckets on their way, of which stage 2 has two at most.
//
// After finish_backward() the module's parameters have no .grad; the mean is that of the pieces. A
// step starts from none (what got none on any rank is not stepped): to add up passes, use
// no_sync(), under which stage 2 keeps whole gradients.
//
// Stage 3 is for a nn::Model. Its buckets are the blocks' parameters, which a rank has in full only
// while a block runs: they are gathered before its forward and before its backward pass, while the
// block before runs, and released after. The last block keeps its own between the two. In all, up
// to 1.5 times the bytes of an all-reduce, and 16 psi / d held (section 7.2.2), besides two blocks.
// Blocks that nn::recompute() computes again in segments are gathered for that as well.
// Between agree() and the next pass that keeps a graph parameters are all there, for validation and
// checkpoints; otherwise, from construction on, those of blocks that do not run have no memory, and
// reading them is undefined. All ranks must make the same passes then, with empty batches where
// they have no data. The model must not be used after this object, but after agree().
//
// In groups of g ranks (hybrid sharding: FSDP's HYBRID_SHARD; Zhao et al., VLDB 2023, arXiv
// 2304.11277, section 3.2.2), d is g for what a rank holds, and parameters are gathered within the
// group alone. Gradients are averaged within it first, then each rank's own block with those of the
// ranks in the same place of other groups: 2 (n - 1) / (n g) of the model's bytes for n groups, the
// only ones that go between groups.
//
// LARS and LAMB need norms of whole parameters, as
//
//   optimizer->complete_sums_by([&](const at::Tensor& sums) {
//     sharded.reducer().sum(sums, "norms of parameters");
//   });
//
// and adamw_8bit needs whole blocks of elements, by ShardedOptions::piece_multiple.
class Sharded : public Exchange {
 public:
  // As DataParallel's. Parameters move to other memory, bucket by bucket, and in stage 3 are given
  // up as they go: beside the model, as it was made, it takes memory for one bucket. With
  // ShardedOptions::values it takes memory for this rank's shards and one parameter. Throws
  // Error(usage) for stage 3 of anything but a nn::Model. Blocks.
  Sharded(torch::nn::Module& module, comm::Group group, const ShardedOptions& options);
  ~Sharded() override;

  std::vector<optim::Parameter> parameters() const override;
  // In stage 3.
  bool shares_parameters() const override { return blocks_ != nullptr; }
  const GroupReducer& reducer() const override { return over_shards_; }
  void spread_parameters() override;

  // Throws Error(usage) in stage 3 where a rank has no weight.
  bool begin_step(double weight) override;
  void finish_backward() override;
  void step_by(const std::function<void()>& update) override;
  void agree() override;
  // None: steps depend on nothing else.
  optim::NamedTensors state() const override { return {}; }
  // Takes the state of a DataParallel without codec, too: the order of its buckets has no use here.
  void load_state(const optim::NamedTensors& state) override;
  void continue_step() override;
  bool set_syncing(bool syncing) override;

  // The ranks that share the model out among them, this one included.
  const comm::Group& sharing_group() const { return sharing_; }

  // Sent for gradients, parameters and all else.
  comm::Counters counters() const;

 private:
  // Each sharing group has the same to add up, but might do it in another order: the first one's
  // sums are for all.
  class OverShards : public GroupReducer {
   public:
    explicit OverShards(const Sharded& sharded) : sharded_(sharded) {}
    void sum(const at::Tensor& numbers, std::string_view label) const override;
    void max(const at::Tensor& numbers, std::string_view label) const override;

   private:
    const Sharded& sharded_;
  };

  torch::nn::Module& module_;
  nn::ModuleWatch watch_;
  comm::Group group_;
  const ShardedOptions options_;
  comm::Group sharing_;                // of group_size ranks, or group_
  std::optional<comm::Group> copies_;  // of ranks that have the same shards; none if this one alone
  const OverShards over_shards_{*this};
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<ParameterShards> shards_;
  std::shared_ptr<BlockParameters> blocks_;  // of stage 3
  nn::WrapperGuard gathering_;               // of stage 3
  int buffers_from_ = 0;  // the rank whose buffers all get at the end of this step
};

}  // namespace troika::parallel
