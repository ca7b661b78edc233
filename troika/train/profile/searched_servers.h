// Summation servers in the search for a run's plan.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "troika/comm/group.h"
#include "troika/layout/cluster.h"
#include "troika/layout/plan.h"
#include "troika/plan/search/step_model.h"

namespace troika::train {

// Returns the number of summation servers that were launched beside the ranks of this plan.
int64_t servers_of(const layout::Plan& plan);

// Returns the cluster of the search: `described`, or without it the hosts of the group's ranks. The
// launched servers of the configured plan are on spare hosts. Throws Error(usage) for a description
// of other ranks or spare hosts.
layout::Cluster searched_cluster(const layout::Plan& configured, const comm::Group& group,
                                 const std::optional<layout::Cluster>& described);

// Returns for each profile whether servers average gradients of its precision on this device.
// Throws Error(usage) for spare hosts whose link is not known, and with `needs_servers` if no
// profile has such a precision.
std::vector<bool> profiles_for_sums(const plan::StepProblem& problem, c10::DeviceType device,
                                    bool needs_servers);

}  // namespace troika::train
