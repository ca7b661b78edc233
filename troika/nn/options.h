// Options of a run for its model.
#pragma once

#include <string>

#include "troika/base/config_fwd.h"
#include "troika/nn/zoo.h"

namespace troika::nn {

struct OffloadOptions {
  std::string activations = "";
};

// Bind options to their keys. add_name() binds `model.name`, and add_sizes() the other keys of
// section [model], and add_lora() those of section [lora]; there are none if the name is empty.
// add_options() binds `offload.activations`.
// The options must outlive the table.
void add_name(config::Table& table, ModelOptions& options);
void add_sizes(config::Table& table, ModelOptions& options);
void add_lora(config::Table& table, ModelOptions& options);
void add_options(config::Table& table, OffloadOptions& options);

}  // namespace troika::nn
