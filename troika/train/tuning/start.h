// Helpers for the choices that a run makes at its start.
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

// A run at its start. The members must outlive it. All ranks call the functions below.
struct RunStart {
  const TrainOptions& options;
  const data::Dataset& dataset;
  const comm::Group& group;
  const std::filesystem::path folder;  // of the run
};

// A choice between several candidates; the first candidate is the default rule.
struct StartChoice {
  std::string subject;             // in rank 0's log message, for example "memory format"
  std::string option;              // overrides the choice, for example "trainer.memory_format"
  std::string what;                // key in the tuning file, with all that the answer depends on
  std::vector<std::string> names;  // names of the candidates
  std::function<std::vector<double>()> time;  // see fastest()
};

// The number of ranks among which samples are divided.
int replicas_of(const RunStart& run);
// The number of samples of a rank in a forward pass.
int64_t batch_of(const RunStart& run);
// Whether the run makes at least kMicroBatchesWorthTiming forward passes; true for runs limited
// only by time.
bool is_worth_timing(const RunStart& run);

// Logs the choice on rank 0, unless the run's messages are disabled.
void say(const RunStart& run, const StartChoice& choice, const std::string& taken,
         const std::string& why);

// Whether timing is disabled, by trainer.deterministic or without trainer.benchmark. If so, logs
// the default.
bool takes_rule(const RunStart& run, const StartChoice& choice);

// Returns the fastest() candidate, from the user's file or timed now, and logs it with the reason.
std::string timed(const RunStart& run, const StartChoice& choice, double margin);

// Applies `of` to the options of the checkpoint that the run resumes from; empty without a
// checkpoint.
std::string choice_of_checkpoint(const RunStart& run, std::string (*of)(const TrainOptions&));

}  // namespace troika::train
