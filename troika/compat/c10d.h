// The parts of c10d that this project uses: a store and Gloo's process group, whose names and base
// classes changed between LibTorch 1.13 and 2.x. Include only if Gloo is built in.
#pragma once

#include <torch/version.h>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>

#include "troika/compat/c10d_store.h"

namespace troika::compat {

using GlooProcessGroup = c10d::ProcessGroupGloo;
// c10d::ProcessGroup::Work in 1.12, c10d::Work from 1.13 on.
using GlooWork = c10::intrusive_ptr<c10d::Work>;

}  // namespace troika::compat
