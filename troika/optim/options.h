// The options of a run for its optimizer and its learning rate.
#pragma once

#include "troika/base/config.h"
#include "troika/optim/optimizer.h"
#include "troika/optim/schedule.h"

namespace troika::optim {

// Each binds the options to their keys, which are in section [optim] but for add_offload():
// `offload.optimizer`. They must outlive the table.
void add_options(config::Table& table, OptimizerOptions& options);
void add_options(config::Table& table, ScheduleOptions& options);
void add_offload(config::Table& table, OptimizerOptions& options);

}  // namespace troika::optim
