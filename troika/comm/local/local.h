// Back end `local`: ranks are threads of one process. Used to test distributed code: any number of
// ranks is cheap, and a debugger sees all of them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "troika/comm/group.h"

namespace troika::comm::local {

// Makes the group implementations of `size` ranks in this process, in rank order. `nodes`, if
// given, is the simulated node of each rank.
std::vector<std::shared_ptr<GroupImpl>> make(int size, const std::vector<int>& nodes = {});

// Returns a group of one rank.
Group alone(const GroupOptions& options = {});

// Runs `body` once per rank, each on its own thread with its own group, and waits for all. If ranks
// throw, rethrows the error of a rank that failed by itself rather than of one that only noticed a
// peer's failure.
void run(int size, const std::function<void(Group)>& body, const GroupOptions& options = {});
// The same for existing ranks of any back end.
void run_ranks(std::vector<std::shared_ptr<GroupImpl>> impls,
               const std::function<void(Group)>& body, const GroupOptions& options = {});

}  // namespace troika::comm::local
