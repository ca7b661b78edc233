// Choices of speed that a run makes at its start, by timing the ways there are.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/data/dataset.h"
#include "troika/nn/attention.h"
#include "troika/train/options/cpu_binding.h"
#include "troika/train/options/options.h"
#include "troika/train/tuning/tuning_file.h"

namespace troika::train {

// The way that takes the least time, added up over all ranks: that which rank 0's file has for the
// question, or by `time` on all ranks at once, which gives seconds in the order of `names`, and
// rank 0's file then has it. The first way is taken unless another one saves more than `margin` of
// its time. The same on all ranks, which call this; blocks.
TuningEntry fastest(const comm::Group& group, const TuningFile& file,
                    const TuningQuestion& question, const std::vector<std::string>& names,
                    const std::function<std::vector<double>()>& time, double margin = 0);

// options.model, with an attn_implementation of "auto" replaced by the one that the run takes. Of
// these the first that applies: that of the checkpoint that the run goes on from; "auto" again with
// trainer.deterministic, without trainer.benchmark, on a GPU, with dropout, and for models without
// attention; the fastest() of this LibTorch for the batches of `dataset`. Says on rank 0 what was
// chosen and why. `folder` is the run's. Called by all ranks; blocks.
nn::ModelOptions tuned_model(const TrainOptions& options, const data::Dataset& dataset,
                             const comm::Group& group, const std::filesystem::path& folder);

// options.trainer.memory_format, with an "auto" of a model of images of ours replaced as
// tuned_model() does it. Timing takes several passes, so runs of fewer than kPassesWorthTiming are
// left to the rule of "auto" (nn/memory_format.h), as are strategies that keep weights contiguous.
// Another format than the rule's is to save more than 3 %.
inline constexpr int64_t kPassesWorthTiming = 500;
std::string tuned_memory_format(const TrainOptions& options, const data::Dataset& dataset,
                                const comm::Group& group, const std::filesystem::path& folder);

// The same for options.trainer.weight_layout of a GPT (nn/weight_layout.h).
std::string tuned_weight_layout(const TrainOptions& options, const data::Dataset& dataset,
                                const comm::Group& group, const std::filesystem::path& folder);

// The processors that this rank's threads that compute are to be bound to (cpu_binding.h); none
// where they are left to the system. With "auto", for models of ours on CPUs whose ranks share
// processors, the fastest() of both: forward and backward passes of a fresh model, of one block
// with a GPT, while all ranks compute. Left to the system are, besides, runs that tuned_model() and
// tuned_memory_format() time nothing for; a resumed run may choose otherwise, as bits do not depend
// on it. Binding is to save more than 3 %. The same choice on all ranks, which call this; blocks.
Processors tuned_cpu_bind(const TrainOptions& options, const data::Dataset& dataset,
                          const comm::Group& group);
// The same without timing: none for "auto". With "cores", throws Error(usage) where processors
// cannot be divided; where each rank has its own already, there is nothing to bind.
Processors asked_cpu_bind(const TrainOptions& options, const comm::Group& group);

}  // namespace troika::train
