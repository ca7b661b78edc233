// Back end `local`: ranks are threads of one process. The test bed of everything distributed: any
// number of ranks costs nothing, and a debugger sees them all.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "troika/comm/group.h"

namespace troika::comm::local {

// The group implementations of `size` ranks that share this process, in rank order. `nodes`, if
// given, is what they take for the nodes they are on.
std::vector<std::shared_ptr<GroupImpl>> make(int size, const std::vector<int>& nodes = {});

// A group of one rank.
Group alone(const GroupOptions& options = {});

// Runs `body` once per rank, each on a thread of its own with its own group, and waits for all.
// If ranks throw, rethrows the error of one that failed by itself rather than of one that only
// noticed a peer's failure.
void run(int size, const std::function<void(Group)>& body, const GroupOptions& options = {});
// The same for ranks that were made before, of any back end.
void run_ranks(std::vector<std::shared_ptr<GroupImpl>> impls,
               const std::function<void(Group)>& body, const GroupOptions& options = {});

}  // namespace troika::comm::local
