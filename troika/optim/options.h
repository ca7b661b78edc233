// Options of a run for its optimizer and its learning rate.
#pragma once

#include "troika/base/config_fwd.h"
#include "troika/optim/optimizer.h"
#include "troika/optim/schedule.h"

namespace troika::optim {

// Binds the options to their keys: those in section [optim], and `offload.optimizer` for
// add_offload(). The options must outlive the table.
void add_options(config::Table& table, OptimizerOptions& options);
void add_options(config::Table& table, ScheduleOptions& options);
void add_offload(config::Table& table, OptimizerOptions& options);

}  // namespace troika::optim
