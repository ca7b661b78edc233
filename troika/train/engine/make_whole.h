// The end of a run that does not begin.
#pragma once

#include <functional>

#include "troika/comm/group.h"

namespace troika::train {

// Calls `make_whole`, which gives the module on each rank all parameters. Logs a warning if this
// fails because another rank is gone. Implements Engine::try_to_make_whole(); blocks.
void try_whole(const std::function<void()>& make_whole, const comm::Group& world);

}  // namespace troika::train
