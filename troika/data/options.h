// Options of a run for its data.
#pragma once

#include <cstdint>

#include "troika/base/config_fwd.h"
#include "troika/data/make_dataset.h"

namespace troika::data {

// Section [data].
struct RunDataOptions : DataOptions {
  int64_t batch_size = 32;
  int64_t global_batch_size = 0;
  int64_t workers = 1;
  int64_t prefetch = 4;
};

// Binds the options to their keys; if the name is empty, only the options of batches. They must
// outlive the table.
void add_options(config::Table& table, RunDataOptions& options);

}  // namespace troika::data
