// The control plane of ranks that are processes, over rank 0's rendezvous.
#pragma once

#include <memory>

#include "troika/cluster/rendezvous/rendezvous.h"
#include "troika/comm/diagnostics/lifeline.h"

namespace troika::comm {

std::unique_ptr<ControlPlane> make_control_plane(std::shared_ptr<cluster::Rendezvous> rendezvous);

}  // namespace troika::comm
