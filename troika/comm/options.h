// The options of a run for communication between its ranks.
#pragma once

#include <cstdint>
#include <string>

#include "troika/base/config_fwd.h"

namespace troika::comm {

// The section [comm] of a configuration.
struct CommOptions {
  std::string backend = "auto";
  std::string protection = "none";
  int64_t streams = 1;
  std::string algorithm = "auto";
  double timeout_seconds = 300;
  double stall_warning_seconds = 30;
  double join_timeout_seconds = 60;
  double bucket_megabytes = 25;
  double first_bucket_megabytes = 1;
};

// Binds the options to their keys in `table`. `options` must outlive the table.
void add_options(config::Table& table, CommOptions& options);

}  // namespace troika::comm
