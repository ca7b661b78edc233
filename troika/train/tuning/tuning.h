// Performance choices that a run makes at its start by timing the alternatives.
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

// Returns the candidate with the least time, summed over all ranks. Takes the answer from rank 0's
// file if it has one for the question. Otherwise calls `time` on all ranks at once, which returns
// seconds in the order of `names`, and stores the answer in rank 0's file. Takes the first
// candidate unless another saves more than the fraction `margin` of its time. Called by all ranks,
// with the same result on all; blocks.
TuningEntry fastest(const comm::Group& group, const TuningFile& file,
                    const TuningQuestion& question, const std::vector<std::string>& names,
                    const std::function<std::vector<double>()>& time, double margin = 0);

// Returns options.model, with an attn_implementation of "auto" replaced by the run's choice: the
// choice of the checkpoint to resume from, or else the fastest() for the batches of `dataset`.
// Leaves "auto" with trainer.deterministic, without trainer.benchmark, on a GPU, with dropout, on a
// context axis by rings, and for models without attention. Logs the choice and its reason on rank
// 0. `folder` is the run's. Called by all ranks; blocks.
nn::ModelOptions tuned_model(const TrainOptions& options, const data::Dataset& dataset,
                             const comm::Group& group, const std::filesystem::path& folder);

// Returns options.trainer.memory_format, with "auto" replaced as in tuned_model(), for Troika's
// image models. Timing takes several forward and backward passes, so runs with fewer than
// kMicroBatchesWorthTiming keep the rule of "auto" (nn/memory_format.h), and so do strategies that
// need contiguous weights. Another format must save more than 3 % to replace the rule's.
inline constexpr int64_t kMicroBatchesWorthTiming = 500;
std::string tuned_memory_format(const TrainOptions& options, const data::Dataset& dataset,
                                const comm::Group& group, const std::filesystem::path& folder);

// The same for options.trainer.weight_layout of a GPT (nn/weight_layout.h).
std::string tuned_weight_layout(const TrainOptions& options, const data::Dataset& dataset,
                                const comm::Group& group, const std::filesystem::path& folder);

// Returns the processors to which this rank binds its compute threads (cpu_binding.h); empty to
// leave threads to the system. With "auto", for Troika's models on CPUs whose ranks share
// processors, takes the fastest() of both, timed by forward and backward passes of a new model (for
// a GPT, of one block) while all ranks compute. Leaves threads to the system where tuned_model()
// and tuned_memory_format() would not time. Ignores the checkpoint's choice, because results do not
// depend on binding. Binding must save more than 3 %. Called by all ranks, with the same choice on
// all; blocks.
Processors tuned_cpu_bind(const TrainOptions& options, const data::Dataset& dataset,
                          const comm::Group& group);
// The same without timing: empty for "auto". With "cores", throws Error(usage) if processors cannot
// be divided; returns an empty list if each rank already has processors of its own.
Processors asked_cpu_bind(const TrainOptions& options, const comm::Group& group);

}  // namespace troika::train
