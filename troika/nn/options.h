// Options of a run for its model.
#pragma once

#include <string>

#include "troika/base/config.h"
#include "troika/nn/zoo.h"

namespace troika::nn {

struct OffloadOptions {
  std::string activations = "";
};

// Each binds options to their keys: add_name() `model.name`; add_sizes() the others of section
// [model], of which there are none if the name is empty; add_options() `offload.activations`. The
// options must outlive the table.
void add_name(config::Table& table, ModelOptions& options);
void add_sizes(config::Table& table, ModelOptions& options);
void add_options(config::Table& table, OffloadOptions& options);

}  // namespace troika::nn
