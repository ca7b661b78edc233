// Steps of a run's start that may fail on one rank alone.
#pragma once

#include <functional>

#include "troika/comm/world/mesh_groups.h"

namespace troika::train {

class Engine;

// Calls `body`, in which ranks do not communicate. If it throws on any rank, all ranks throw, with
// the module whole: Error(peer) on a rank whose own `body` has not thrown. Called by all ranks;
// blocks.
void start_together(const comm::MeshGroups& groups, Engine& engine,
                    const std::function<void()>& body);

// Calls `body`, which throws an Error on all ranks or on none. Makes the module whole if it throws.
void or_leave_module_whole(Engine& engine, const std::function<void()>& body);

}  // namespace troika::train
