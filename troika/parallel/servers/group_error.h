// Errors that name the lost rank, where servers only know that a connection has ended. Internal to
// the folder.
#pragma once

#include <chrono>
#include <functional>
#include <string_view>

#include "troika/comm/group.h"

namespace troika::parallel {

// A barrier that can be waited for with a deadline. A rank that failed waits together with those at
// a cut, too.
comm::Work start_barrier(const comm::Group& group, std::string_view label);

// Calls `act`. If it fails because a process is lost, throws the group's error if there is one
// within `limit`: it names the rank.
void with_group_errors(const comm::Group& group, std::chrono::nanoseconds limit,
                       const std::function<void()>& act);

}  // namespace troika::parallel
