// Parts of the choices that a run makes at its start.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "troika/comm/group.h"
#include "troika/data/dataset.h"
#include "troika/train/options/options.h"
#include "troika/train/tuning/tuning_file.h"

namespace troika::train {

// A run at its start; the members must outlive it. All functions are called by all ranks.
struct RunStart {
  const TrainOptions& options;
  const data::Dataset& dataset;
  const comm::Group& group;
  const std::filesystem::path folder;  // the run's
};

// A choice between ways of which the first is the rule, and the fastest of them.
struct StartChoice {
  std::string subject;             // as rank 0 says it: "memory format"
  std::string option;              // that overrides it: "trainer.memory_format"
  std::string what;                // the question in the file, with all that the answer depends on
  std::vector<std::string> names;  // of the ways
  std::function<std::vector<double>()> time;  // see fastest()
};

// Ranks among which samples are shared out.
int replicas_of(const RunStart& run);
// Samples that a rank has in a forward pass.
int64_t batch_of(const RunStart& run);
// Whether the run takes kPassesWorthTiming forward passes or more; one that the clock ends does.
bool is_worth_timing(const RunStart& run);

// Says on rank 0 what is taken, unless the run says nothing about itself.
void say(const RunStart& run, const StartChoice& choice, const std::string& taken,
         const std::string& why);

// Whether nothing is to be timed, with trainer.deterministic or without trainer.benchmark; says so,
// with the rule.
bool takes_rule(const RunStart& run, const StartChoice& choice);

// The fastest() of the user's file, or as timed now; says which and why.
std::string timed(const RunStart& run, const StartChoice& choice, double margin);

// Applies `of` to the options of the checkpoint that the run goes on from; empty without one.
std::string choice_of_checkpoint(const RunStart& run, std::string (*of)(const TrainOptions&));

}  // namespace troika::train
